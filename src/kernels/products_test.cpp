// Products as callers see them: several at once, parts of tensors, and what is refused.

#include "kernels/matrix.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "imago/error.h"
#include "imago/system.h"
#include "testing/matrix_definition.h"
#include "testing/random_values.h"

namespace imago::kernels {
namespace {

/// y = silu(gate x) · (up x).
void multiply_gated(const RunMatrix& gate, const RunMatrix& up, std::span<const float> x, std::size_t batch,
                    std::span<float> y) {
  std::vector<float> room(y.size());
  const Product product{.matrix = &gate,
                        .y = y,
                        .tokens = batch,
                        .epilogue = {.bias = {}, .activation = Activation::silu},
                        .up = &up,
                        .up_y = room};
  multiply_all({&product, 1}, x, batch);
}

using testing::Expected;
using testing::expected;
using testing::host_runs;
using testing::packed_sample;
using testing::PackedSample;

TEST(Products, BiasActivationAndGate) {
  const std::vector<float> weights = testing::gaussian(40 * 96, 1);
  const std::vector<float> bias = testing::gaussian(40, 2);
  const std::vector<float> x = testing::gaussian(3 * 96, 3);
  for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::fast}) {
    const PackedSample m = packed_sample(DType::int8, 40, 96, 0, weights);
    const PackedSample other = packed_sample(BlockFormat::q4_0, 40, 96, 0, testing::gaussian(40 * 96, 4));
    const RunMatrix matrix(m.source(), arithmetic);
    const RunMatrix second(other.source(), arithmetic);
    for (const std::size_t batch : {1, 3}) {
      const auto input = std::span(x).first(batch * 96);
      std::vector<float> plain(batch * 40), with(batch * 40), up(batch * 40), gated(batch * 40);
      matrix.multiply(input, batch, plain);
      matrix.multiply(input, batch, with, {.bias = bias, .activation = Activation::relu});
      second.multiply(input, batch, up);
      multiply_gated(matrix, second, input, batch, gated);
      for (std::size_t i = 0; i < plain.size(); ++i) {
        EXPECT_NEAR(with[i], std::max(0.0f, plain[i] + bias[i % 40]), 1e-5);
        const double silu = plain[i] / (1 + std::exp(-static_cast<double>(plain[i])));
        EXPECT_NEAR(gated[i], silu * up[i], 1e-4 * (1 + std::fabs(silu * up[i])));
      }
    }
  }
}

TEST(Products, SeveralProductsAreThoseOfEachAlone) {
  // Types, sizes and arithmetics mixed, some tokens for each, and more matrices than threads: as experts are.
  constexpr std::size_t kCols = 96, kBatch = 7;
  const std::vector<float> x = testing::gaussian(kBatch * kCols, 21);
  struct Case {
    Format format;
    Arithmetic arithmetic;
    std::size_t rows, first, tokens;
    bool gated;
  };
  const std::vector<Case> cases = {
      {BlockFormat::q8_0, Arithmetic::fast, 40, 0, 7, false}, {DType::int8, Arithmetic::exact, 17, 0, 7, false},
      {BlockFormat::q4_0, Arithmetic::fast, 33, 2, 1, true},  {BlockFormat::q4_1, Arithmetic::exact, 16, 3, 4, true},
      {DType::float32, Arithmetic::exact, 5, 6, 1, false},    {BlockFormat::q5_0, Arithmetic::fast, 70, 0, 0, false},
      {BlockFormat::q6_k, Arithmetic::fast, 1, 0, 0, false}};
  for (const int threads : {1, 2, 3}) {
    set_thread_count(threads);
    std::vector<std::unique_ptr<RunMatrix>> matrices;
    std::vector<std::vector<float>> results, wanted, rooms;
    std::vector<Product> products;
    results.reserve(cases.size());
    rooms.reserve(cases.size());
    for (const Case& c : cases) {
      if (kCols % static_cast<std::size_t>(c.format.block_values()) != 0) continue;
      const PackedSample m = packed_sample(c.format, c.rows, kCols, 0, testing::gaussian(c.rows * kCols, 22));
      const PackedSample up = packed_sample(BlockFormat::q8_0, c.rows, kCols, 0, testing::gaussian(c.rows * kCols, 23));
      matrices.push_back(std::make_unique<RunMatrix>(m.source(), c.arithmetic));
      const RunMatrix& matrix = *matrices.back();
      matrices.push_back(std::make_unique<RunMatrix>(up.source(), Arithmetic::fast));
      const RunMatrix& second = *matrices.back();
      const auto tokens = std::span(x).subspan(c.first * kCols, c.tokens * kCols);
      wanted.emplace_back(c.tokens * c.rows);
      results.emplace_back(c.tokens * c.rows);
      rooms.emplace_back(c.tokens * c.rows);
      Product product{.matrix = &matrix, .y = results.back(), .first_token = c.first, .tokens = c.tokens};
      if (c.gated) {
        multiply_gated(matrix, second, tokens, c.tokens, wanted.back());
        product.epilogue.activation = Activation::silu;
        product.up = &second;
        product.up_y = rooms.back();
      } else {
        matrix.multiply(tokens, c.tokens, wanted.back());
      }
      products.push_back(product);
    }
    multiply_all(products, x, kBatch);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      for (std::size_t j = 0; j < wanted[i].size(); ++j) {
        EXPECT_NEAR(results[i][j], wanted[i][j], 1e-4 * (1 + std::fabs(wanted[i][j]))) << i << " " << j;
      }
    }
    Product wrong = products.front();
    wrong.first_token = 1;
    EXPECT_THROW(multiply_all({&wrong, 1}, x, kBatch), ShapeError) << "tokens 1 to 8 of 7";
    wrong = products.front();
    wrong.up = products.back().matrix;
    EXPECT_THROW(multiply_all({&wrong, 1}, x, kBatch), ShapeError) << "a gate and an up of other rows";
  }
  set_thread_count(0);
}

TEST(Products, TokensGetWhatTheyGetAlone) {
  constexpr std::size_t kRows = 40, kCols = 512, kMost = 40;
  const std::vector<float> weights = testing::gaussian(kRows * kCols, 1), x = testing::gaussian(kMost * kCols, 2);
  for (const MatrixKernel& kernel : all_matrix_kernels()) {
    if (!host_runs(kernel)) continue;
    const RunMatrix matrix(kernel, packed_sample(kernel.format, kRows, kCols, 0, weights).source());
    std::vector<float> alone(kMost * kRows);
    for (std::size_t t = 0; t < kMost; ++t) {
      matrix.multiply(std::span(x).subspan(t * kCols, kCols), 1, std::span(alone).subspan(t * kRows, kRows));
    }
    ASSERT_GE(kernel.functions.alike, 1u);
    for (const std::size_t batch : {2, 3, 5, 11, 12, 13, 15, 16, 40}) {
      if (batch > kernel.functions.alike) break;
      std::vector<float> together(batch * kRows);
      matrix.multiply(std::span(x).first(batch * kCols), batch, together);
      ASSERT_EQ(std::memcmp(together.data(), alone.data(), together.size() * sizeof(float)), 0)
          << kernel.name << ", " << batch << " tokens";
    }
  }
}

TEST(Products, MayLieAmidOtherWeights) {
  constexpr std::size_t kRows = 5, kBatch = 2;
  for (const MatrixKernel& kernel : all_matrix_kernels()) {
    if (!host_runs(kernel)) continue;
    const bool is_block = kernel.format.is_block();
    const std::size_t block = static_cast<std::size_t>(kernel.format.block_values());
    const std::size_t cols = is_block ? block : 37;
    const std::size_t first = is_block ? 3 * block : 3;  // amid a byte for the small types
    const PackedSample all = packed_sample(kernel.format, 1, first + kRows * cols + block, 0,
                                           testing::gaussian(first + kRows * cols + block, 11));
    PackedSample part = all;
    part.rows = kRows;
    part.cols = cols;
    part.decoded.erase(part.decoded.begin(), part.decoded.begin() + static_cast<std::ptrdiff_t>(first));
    part.decoded.resize(kRows * cols);
    PackedMatrix source = all.source();
    source.rows = kRows;
    source.cols = cols;
    source.first = first;
    const std::vector<float> x = testing::gaussian(kBatch * cols, 12);
    std::vector<float> y(kBatch * kRows);
    RunMatrix(kernel, source).multiply(x, kBatch, y);
    const Expected want = expected(part, x, kBatch, kernel.arithmetic);
    for (std::size_t i = 0; i < y.size(); ++i) {
      EXPECT_NEAR(static_cast<double>(y[i]), want.y[i], want.bound[i]) << kernel.name << " at " << i;
    }
  }
}

TEST(Products, BadShapesAreRefused) {
  const std::vector<float> weights(64 * 64);
  const PackedSample m = packed_sample(DType::int4, 64, 64, 0, weights);
  const RunMatrix matrix(m.source(), Arithmetic::exact);
  std::vector<float> x(64), y(64);
  EXPECT_NO_THROW(matrix.multiply(x, 1, y));
  EXPECT_THROW(matrix.multiply(std::span(x).first(63), 1, y), ShapeError);
  EXPECT_THROW(matrix.multiply(x, 1, std::span(y).first(63)), ShapeError);
  EXPECT_THROW(matrix.multiply(x, 2, y), ShapeError);
  EXPECT_THROW(matrix.multiply(x, 1, y, {.bias = std::span(x).first(3), .activation = Activation::linear}), ShapeError);
  for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::fast}) {
    // Groups are 32, 64 or 128 columns, or whole rows; 96 divides neither a super-block nor a row of scales.
    const std::vector<float> scales(2 * 192, 1.0f);
    for (const std::size_t group : {0, 1, 33, 96, 100, 193}) {
      PackedMatrix odd = m.source();
      odd.rows = 2;
      odd.cols = 192;
      odd.scales = {scales, group};
      EXPECT_THROW(RunMatrix(odd, arithmetic), ShapeError) << group;
    }
    for (const auto& [rows, cols] : {std::pair<std::size_t, std::size_t>{0, 64}, {64, 0}, {0, 0}}) {
      PackedMatrix empty = m.source();
      empty.rows = rows;
      empty.cols = cols;
      EXPECT_THROW(RunMatrix(empty, arithmetic), ShapeError) << rows << " × " << cols;
    }
    PackedMatrix huge = m.source();
    huge.rows = huge.cols = std::size_t{1} << 40;
    huge.scales.group = huge.cols;
    EXPECT_THROW(RunMatrix(huge, arithmetic), ShapeError);
  }
  EXPECT_THROW(RunMatrix({DType::float32, 1, 8, m.bytes}, Arithmetic::fast), UnsupportedError);
  EXPECT_THROW(RunMatrix({BlockFormat::q4_k, 1, 64, m.bytes}, Arithmetic::exact), ShapeError);
  EXPECT_THROW(RunMatrix({BlockFormat::q4_0, 1, 64, m.bytes, {}, 16}, Arithmetic::exact), ShapeError);
  // Bytes and scales that end too early, and a scale that is none.
  PackedMatrix bad = m.source();
  bad.packed = bad.packed.first(bad.packed.size() - 1);
  EXPECT_THROW(RunMatrix(bad, Arithmetic::exact), ShapeError);
  bad = m.source();
  bad.first = 1;
  EXPECT_THROW(RunMatrix(bad, Arithmetic::exact), ShapeError);
  bad = m.source();
  bad.scales.values = {};
  EXPECT_THROW(RunMatrix(bad, Arithmetic::exact), ShapeError);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  bad.scales.values = std::span(&nan, 1);
  EXPECT_THROW(RunMatrix(bad, Arithmetic::exact), UsageError);
  EXPECT_THROW(RunMatrix(*choose_matrix_kernel(DType::int8, Arithmetic::exact, kNoFeatures), m.source()), UsageError);
}

}  // namespace
}  // namespace imago::kernels
