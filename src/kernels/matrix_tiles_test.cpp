// Products by tiles of bfloat16, where the processor has them: what all rows of the table are not asked.

#include "kernels/matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "testing/matrix_definition.h"
#include "testing/random_values.h"

namespace imago::kernels {
namespace {

using testing::expect_matches;
using testing::Expected;
using testing::expected_by_tiles;
using testing::packed_sample;
using testing::PackedSample;

TEST(MatrixTiles, OfLongRowsAndManyPanels) {
  // More columns than a stripe, more panels than a group, and blocks of tokens whose sums wait for the next stripe.
  int compared = 0;
  const std::pair<Format, Arithmetic> cases[] = {
      {BlockFormat::q4_k, Arithmetic::fast}, {BlockFormat::q6_k, Arithmetic::fast},
      {DType::int8, Arithmetic::fast},       {DType::float16, Arithmetic::exact},
      {DType::bfloat16, Arithmetic::exact},  {DType::float32, Arithmetic::exact}};
  for (const auto& [format, arithmetic] : cases) {
    const MatrixKernel* kernel = choose_matrix_kernel(format, arithmetic, host_cpu_features());
    if (!kernel->takes_tiles(70)) continue;
    const std::size_t cols = format.is_block() ? 4608 : 4111;
    const PackedSample m =
        packed_sample(format, 16 * 17 + 3, cols, 0, testing::gaussian((16 * 17 + 3) * cols, 31, 0.3f));
    expect_matches(*kernel, m, 70, testing::gaussian(70 * cols, 32));
    ++compared;
  }
  if (compared == 0) GTEST_SKIP() << "this processor multiplies no tiles";
}

TEST(MatrixTiles, ExactOnesLoseNothingThatFloat32HasNot) {
  // One weight a row, so that nothing is added up: every product is rounded once. Activations fill all of their 24
  // bits. What an infinite one touches is infinite or no number, and others do not notice.
  constexpr std::size_t kRows = 20, kCols = 64, kBatch = 40;
  int compared = 0;
  for (const DType type : {DType::float32, DType::float16, DType::bfloat16}) {
    const MatrixKernel* kernel = choose_matrix_kernel(type, Arithmetic::exact, host_cpu_features());
    if (!kernel->takes_tiles(kBatch)) continue;
    std::vector<float> weights(kRows * kCols);
    for (std::size_t r = 0; r < kRows; ++r) weights[r * kCols + 3 * r] = 0.37f + 0.219f * static_cast<float>(r);
    const PackedSample m = packed_sample(type, kRows, kCols, 0, weights);
    std::vector<float> x = testing::gaussian(kBatch * kCols, 35);
    x[7 * kCols] = std::numeric_limits<float>::infinity();
    x[8 * kCols + 3] = std::numeric_limits<float>::max();  // times the zeros of rows but one
    std::vector<float> y(kBatch * kRows);
    RunMatrix(*kernel, m.source()).multiply(x, kBatch, y);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const std::size_t t = i / kRows, r = i % kRows;
      const double product = double{m.decoded[r * kCols + 3 * r]} * double{x[t * kCols + 3 * r]};
      if (t == 7) {
        EXPECT_FALSE(std::isfinite(y[i])) << kernel->name << " row " << r;
      } else {
        EXPECT_NEAR(y[i], product, 0x1p-22 * std::fabs(product)) << kernel->name << " token " << t << " row " << r;
      }
    }
    ++compared;
  }
  if (compared == 0) GTEST_SKIP() << "this processor multiplies no tiles";
}

TEST(MatrixTiles, OfSomeTokensOfABatch) {
  // As experts have them: from any token on, perhaps fewer than a tile, and beside tokens with NaNs.
  constexpr std::size_t kRows = 40, kCols = 96, kBatch = 60;
  const PackedSample m = packed_sample(BlockFormat::q8_0, kRows, kCols, 0, testing::gaussian(kRows * kCols, 33));
  const RunMatrix matrix(m.source(), Arithmetic::fast);
  if (!matrix.kernel().takes_tiles(kBatch)) GTEST_SKIP() << "this processor multiplies no tiles";
  for (const std::size_t first : {0, 1, 15, 16, 37}) {
    for (const std::size_t tokens : {1, 5, 16, 23}) {
      std::vector<float> x = testing::gaussian(kBatch * kCols, 34);
      const auto inside = std::span(x).subspan(first * kCols, tokens * kCols);
      const Expected e = expected_by_tiles(m, inside, tokens);
      for (std::size_t t = 0; t < kBatch; ++t) {
        if (t < first || t >= first + tokens) x[t * kCols + 5] = std::numeric_limits<float>::quiet_NaN();
      }
      std::vector<float> y(tokens * kRows);
      const Product product{.matrix = &matrix, .y = y, .first_token = first, .tokens = tokens};
      multiply_all({&product, 1}, x, kBatch);
      for (std::size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], e.y[i], e.bound[i]) << first << " " << tokens;
    }
  }
}

}  // namespace
}  // namespace imago::kernels
