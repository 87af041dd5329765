// The choice of experts on the GPU against that of the host, and their products against a plain sum.

#include "backend/cuda/experts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "backend/routing.h"
#include "kernels/cuda/expert_products.h"
#include "kernels/cuda/matrix.h"
#include "testing/gpu_ops_fixture.h"
#include "testing/random_values.h"

namespace imago::backend::cuda {
namespace {

using testing::gaussian;

class CudaExperts : public kernels::cuda::OpsFixture {};

TEST_F(CudaExperts, AreChosenAsOnTheHost) {
  for (const ExpertScores scores : {ExpertScores::softmax, ExpertScores::sigmoid}) {
    for (const std::size_t groups : {1, 4, 8}) {
      for (const std::size_t count : {8, 64, 256}) {
        const bool biased = groups != 1;
        const Experts experts{.count = count,
                              .used = 6,
                              .scores = scores,
                              .groups = count / groups < 2 ? 1 : groups,
                              .groups_used = count / groups < 6 ? (count / groups < 2 ? 1 : groups) : (groups + 1) / 2,
                              .two_judge_group = biased,
                              .normalize = !biased,
                              .scale = 2.5f};
        constexpr std::size_t kTokens = 13;
        std::vector<float> products = gaussian(kTokens * count, 1);
        std::fill_n(products.begin(), count, 0.5f);  // draws
        const std::vector<float> bias = gaussian(count, 2, 0.3f);
        auto gpu_products = up(products), gpu_bias = up(bias);
        auto chosen = zeros<std::int32_t>(kTokens * experts.used);
        auto weights = zeros<float>(kTokens * experts.used);
        choose_experts(experts,
                       {.products = gpu_products.data(),
                        .choice_bias = biased ? gpu_bias.data() : nullptr,
                        .chosen = chosen.data(),
                        .weights = weights.data(),
                        .tokens = kTokens},
                       stream());
        stream().wait();
        Routing routing;
        routing.route(experts, products, biased ? std::span<const float>(bias) : std::span<const float>(), kTokens);
        const auto got = chosen.values();
        const auto got_weights = weights.values();
        for (std::size_t i = 0; i < kTokens * experts.used; ++i) {
          ASSERT_EQ(static_cast<std::size_t>(got[i]), routing.chosen[i])
              << count << " experts, " << groups << ", " << i;
          ASSERT_NEAR(got_weights[i], routing.weights[i], 1e-5f * std::fabs(routing.weights[i]));
        }
      }
    }
  }
}

TEST_F(CudaExperts, MultiplyWithWhatWasChosen) {
  constexpr std::size_t kExperts = 5, kRows = 37, kCols = 100, kTokens = 3, kUsed = 2;
  std::vector<kernels::cuda::GpuMatrix> matrices;
  std::vector<std::vector<float>> values;
  for (unsigned i = 0; i < 2 * kExperts; ++i) {
    values.push_back(gaussian(kRows * kCols, i, 0.1f));
    matrices.emplace_back(
        device(),
        kernels::PackedMatrix{
            .format = DType::float32, .rows = kRows, .cols = kCols, .packed = std::as_bytes(std::span(values.back()))});
  }
  const std::vector<float> x = gaussian(kTokens * kCols, 90), bias = gaussian(kRows, 91), up_bias = gaussian(kRows, 92);
  auto gpu_x = up(x), gpu_bias = up(bias), gpu_up_bias = up(up_bias);
  std::vector<kernels::cuda::ExpertMatrices> table;
  for (std::size_t e = 0; e < kExperts; ++e) {
    table.push_back({matrices[2 * e].planes(), matrices[2 * e + 1].planes(), gpu_bias.data(), gpu_up_bias.data()});
  }
  const std::vector<std::int32_t> chosen = {4, 0, 1, 4, 3, 2};
  auto gpu_table = up(table);
  auto gpu_chosen = up(chosen);
  auto y = zeros<float>(kTokens * kUsed * kRows);
  kernels::cuda::multiply_experts(DType::float32,
                                  {.experts = gpu_table.data(),
                                   .chosen = gpu_chosen.data(),
                                   .x = gpu_x.data(),
                                   .y = y.data(),
                                   .count = kTokens * kUsed,
                                   .share = kUsed,
                                   .rows = kRows,
                                   .cols = kCols,
                                   .activation = kernels::Activation::silu,
                                   .gated = true},
                                  stream());
  stream().wait();
  const std::vector<float> got = y.values();
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const auto product = [&](std::size_t matrix, std::size_t row) {
      double sum = 0;
      for (std::size_t c = 0; c < kCols; ++c) sum += double{values[matrix][row * kCols + c]} * x[i / kUsed * kCols + c];
      return sum;
    };
    for (std::size_t row = 0; row < kRows; ++row) {
      const auto expert = static_cast<std::size_t>(chosen[i]);
      const double gate = product(2 * expert, row) + bias[row], other = product(2 * expert + 1, row) + up_bias[row];
      ASSERT_NEAR(got[i * kRows + row], gate / (1 + std::exp(-gate)) * other, 1e-4) << i << " " << row;
    }
  }
}

TEST_F(CudaExperts, HeadsMultiplyPartsOfRowsIntoPartsOfRows) {
  constexpr std::size_t kHeads = 3, kRows = 10, kCols = 40, kTokens = 2, kFrom = 50, kTo = 16;
  std::vector<kernels::cuda::GpuMatrix> matrices;
  std::vector<std::vector<float>> values;
  std::vector<kernels::cuda::ExpertMatrices> table;
  for (unsigned i = 0; i < kHeads; ++i) {
    values.push_back(gaussian(kRows * kCols, i, 0.1f));
    matrices.emplace_back(
        device(),
        kernels::PackedMatrix{
            .format = DType::float32, .rows = kRows, .cols = kCols, .packed = std::as_bytes(std::span(values.back()))});
  }
  for (const kernels::cuda::GpuMatrix& matrix : matrices) table.push_back({.matrix = matrix.planes(), .up = {}});
  const std::vector<float> x = gaussian(kTokens * kHeads * kFrom, 90), before = gaussian(kTokens * kHeads * kTo, 91);
  auto gpu_x = up(x), y = up(before);
  auto gpu_table = up(table);
  kernels::cuda::multiply_experts(DType::float32,
                                  {.experts = gpu_table.data(),
                                   .chosen = nullptr,
                                   .x = gpu_x.data(),
                                   .y = y.data(),
                                   .count = kTokens * kHeads,
                                   .share = 1,
                                   .rows = kRows,
                                   .cols = kCols,
                                   .x_stride = kFrom,
                                   .y_stride = kTo,
                                   .count_of_experts = kHeads},
                                  stream());
  stream().wait();
  const std::vector<float> got = y.values();
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::size_t head = i / kTo, row = i % kTo;
    double wanted = 0;
    if (row >= kRows) wanted = before[i];  // between the rows nothing changes
    for (std::size_t c = 0; row < kRows && c < kCols; ++c) {
      wanted += double{values[head % kHeads][row * kCols + c]} * x[head * kFrom + c];
    }
    ASSERT_NEAR(got[i], wanted, 1e-5) << head << ' ' << row;
  }
}

}  // namespace
}  // namespace imago::backend::cuda
