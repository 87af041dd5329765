// The choice of experts on the GPU against that of the host, and their products against a plain sum.

#include "backend/cuda/experts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "backend/routing.h"
#include "kernels/cuda/expert_products.h"
#include "kernels/cuda/matrix.h"
#include "testing/gpu_ops_fixture.h"
#include "testing/gpu_samples.h"
#include "testing/packed_sample.h"
#include "testing/random_values.h"

namespace imago::backend::cuda {
namespace {

using kernels::cuda::OnDevice;
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

constexpr std::size_t kExperts = 5, kUsed = 2;

/// Gate and up matrices of some experts in one format, with biases.
class Layer {
 public:
  Layer(const std::shared_ptr<Device>& device, Format format, std::size_t rows, std::size_t cols)
      : rows_(rows), cols_(cols) {
    std::vector<kernels::cuda::ExpertMatrices> table;
    for (unsigned i = 0; i < 2 * kExperts; ++i) {
      samples_.push_back(testing::packed_sample(format, rows, cols, 1, gaussian(rows * cols, i, 0.1f)));
      matrices_.emplace_back(device, samples_.back().source());
      biases_.push_back(gaussian(rows, 100 + i));
      device_biases_.emplace_back(*device, biases_.back());
    }
    for (std::size_t e = 0; e < kExperts; ++e) {
      table.push_back({matrices_[2 * e].planes(), matrices_[2 * e + 1].planes(), device_biases_[2 * e].data(),
                       device_biases_[2 * e + 1].data()});
    }
    table_.emplace(*device, table);
  }

  kernels::cuda::ExpertLayer layer() {
    return {.experts = table_->data(),
            .rows = rows_,
            .cols = cols_,
            .activation = kernels::Activation::silu,
            .gated = true};
  }

  /// What an expert makes of a row of activations, in double.
  std::vector<double> expected(std::int32_t expert, std::span<const double> x) const {
    std::vector<double> made(rows_);
    for (std::size_t row = 0; row < rows_; ++row) {
      const auto product = [&](std::size_t matrix) {
        double sum = biases_[matrix][row];
        for (std::size_t c = 0; c < cols_; ++c) sum += double{samples_[matrix].decoded[row * cols_ + c]} * x[c];
        return sum;
      };
      const auto first = 2 * static_cast<std::size_t>(expert);
      const double gate = product(first);
      made[row] = gate / (1 + std::exp(-gate)) * product(first + 1);
    }
    return made;
  }

 private:
  std::size_t rows_, cols_;
  std::vector<testing::PackedSample> samples_;
  std::vector<std::vector<float>> biases_;
  std::deque<kernels::cuda::GpuMatrix> matrices_;
  std::deque<OnDevice<float>> device_biases_;
  std::optional<OnDevice<kernels::cuda::ExpertMatrices>> table_;
};

/// Two different experts for each token.
std::vector<std::int32_t> some_choice(std::size_t tokens) {
  std::vector<std::int32_t> chosen;
  for (std::size_t t = 0; t < tokens; ++t) {
    const auto first = static_cast<std::int32_t>(t * t % kExperts);
    chosen.insert(chosen.end(), {first, (first + 1 + static_cast<std::int32_t>(t % 3)) % static_cast<int>(kExperts)});
  }
  return chosen;
}

TEST_F(CudaExperts, MultiplyQuantizedActivations) {
  constexpr std::size_t kRows = 70, kCols = 512, kTokens = 3;
  for (const Format format : {Format(BlockFormat::q4_k), Format(BlockFormat::q6_k), Format(BlockFormat::mxfp4),
                              Format(BlockFormat::q8_0), Format(BlockFormat::iq2_xxs), Format(DType::int4)}) {
    SCOPED_TRACE(format.name());
    Layer layer(device(), format, kRows, kCols);
    const std::vector<float> x = gaussian(kTokens * kCols, 90);
    std::vector<double> rounded;
    for (std::size_t t = 0; t < kTokens; ++t) {
      const auto row = std::span(x).subspan(t * kCols, kCols);
      testing::append_values(testing::int8_of_gpu(row), kCols, rounded);
    }
    auto gpu_x = up(x);
    auto q = zeros<std::int8_t>(kTokens * kCols);
    auto scales = zeros<kernels::cuda::float2_pod>(kTokens * kCols / 32);
    kernels::cuda::quantize(gpu_x.data(), kTokens, kCols, {q.data(), scales.data()}, stream());
    const std::vector<std::int32_t> chosen = some_choice(kTokens);
    auto gpu_chosen = up(chosen);
    auto y = zeros<float>(chosen.size() * kRows);
    auto y_q = zeros<std::int8_t>(chosen.size() * 96);
    auto y_scales = zeros<kernels::cuda::float2_pod>(chosen.size() * 3);
    kernels::cuda::multiply_experts(format,
                                    {.layer = layer.layer(),
                                     .chosen = gpu_chosen.data(),
                                     .q = q.data(),
                                     .scales = scales.data(),
                                     .y = y.data(),
                                     .int8 = {y_q.data(), y_scales.data()},
                                     .count = chosen.size(),
                                     .share = kUsed},
                                    stream());
    stream().wait();
    const std::vector<float> got = y.values();
    const auto got_q = y_q.values();
    const auto got_scales = y_scales.values();
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const auto expected = layer.expected(chosen[i], std::span(rounded).subspan(i / kUsed * kCols, kCols));
      for (std::size_t row = 0; row < kRows; ++row) {
        ASSERT_NEAR(got[i * kRows + row], expected[row], 1e-4 * (1 + std::fabs(expected[row]))) << i << " " << row;
      }
      const auto blocks = testing::int8_of_gpu(std::span(got).subspan(i * kRows, kRows));
      for (std::size_t row = 0; row < 96; ++row) {
        const Int8Block& block = blocks[row / 32];
        ASSERT_EQ(got_q[i * 96 + row], row < kRows ? block.q[row % 32] : 0) << i << " " << row;
        ASSERT_EQ(got_scales[i * 3 + row / 32].x, block.scale);
      }
    }
  }
}

TEST_F(CudaExperts, MultiplyManyTokensByTiles) {
  constexpr std::size_t kRows = 70, kCols = 512;
  // Weights and activations that bfloat16 holds as they are; matmul_test.cpp has the others.
  constexpr BlockFormat kFormat = BlockFormat::mxfp4;
  Layer layer(device(), kFormat, kRows, kCols);
  for (const std::size_t tokens : {9, 40, 110, 300, 700}) {
    SCOPED_TRACE(fmt::format("{} tokens", tokens));
    std::vector<float> x = gaussian(tokens * kCols, 91);
    for (float& value : x) value = std::round(value * 16) / 16;
    const std::vector<std::int32_t> chosen = some_choice(tokens);
    const kernels::cuda::ExpertTiles tiles = kernels::cuda::expert_tiles(chosen.size(), kExperts);
    auto gpu_x = up(x);
    auto gpu_chosen = up(chosen);
    auto list = zeros<kernels::cuda::ExpertTile>(tiles.most);
    auto sources = zeros<std::int32_t>(std::size_t{tiles.most} * tiles.rows);
    auto places = zeros<std::int32_t>(std::size_t{tiles.most} * tiles.rows);
    auto row_of = zeros<std::int32_t>(chosen.size());
    arrange_experts({.chosen = gpu_chosen.data(),
                     .rows = chosen.size(),
                     .used = kUsed,
                     .experts = kExperts,
                     .tiles = tiles,
                     .list = list.data(),
                     .tokens = sources.data(),
                     .places = places.data(),
                     .row_of = row_of.data()},
                    stream());
    auto y = zeros<float>(chosen.size() * kRows);
    kernels::cuda::ProductScratch scratch(device());
    kernels::cuda::matmul_experts(kFormat,
                                  {.layer = layer.layer(),
                                   .tiles = tiles,
                                   .list = list.data(),
                                   .sources = sources.data(),
                                   .x = gpu_x.data(),
                                   .x_rows = tokens,
                                   .y = y.data()},
                                  scratch, stream());
    stream().wait();
    const std::vector<float> got = y.values();
    const auto rows = row_of.values();
    auto sorted = rows;
    std::ranges::sort(sorted);
    for (std::size_t i = 0; i < sorted.size(); ++i) ASSERT_EQ(sorted[i], static_cast<int>(i)) << "each place once";
    const std::vector<double> exact(x.begin(), x.end());
    for (std::size_t i = 0; i < chosen.size(); i += 7) {
      const auto expected = layer.expected(chosen[i], std::span(exact).subspan(i / kUsed * kCols, kCols));
      for (std::size_t row = 0; row < kRows; ++row) {
        const std::size_t at = static_cast<std::size_t>(rows[i]) * kRows + row;
        ASSERT_NEAR(got[at], expected[row], 1e-4 * (1 + std::fabs(expected[row]))) << i << " " << row;
      }
    }
  }
}

TEST_F(CudaExperts, MultiplyWithWhatWasChosen) {
  constexpr std::size_t kRows = 37, kCols = 100, kTokens = 3;
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
                                  {.layer = {.experts = gpu_table.data(),
                                             .rows = kRows,
                                             .cols = kCols,
                                             .activation = kernels::Activation::silu,
                                             .gated = true},
                                   .chosen = gpu_chosen.data(),
                                   .x = gpu_x.data(),
                                   .y = y.data(),
                                   .count = kTokens * kUsed,
                                   .share = kUsed},
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
                                  {.layer = {.experts = gpu_table.data(), .rows = kRows, .cols = kCols},
                                   .chosen = nullptr,
                                   .count_of_experts = kHeads,
                                   .x = gpu_x.data(),
                                   .y = y.data(),
                                   .x_stride = kFrom,
                                   .y_stride = kTo,
                                   .count = kTokens * kHeads,
                                   .share = 1},
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
