// Every row of the matrix table against `ref`, and `ref` against sums in double.

#include "kernels/matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>

#include "imago/codec.h"
#include "imago/numeric.h"
#include "imago/system.h"
#include "testing/matrix_definition.h"
#include "testing/random_values.h"
#include "testing/safetensors.h"

namespace imago::kernels {
namespace {

using testing::expect_matches;
using testing::host_runs;
using testing::packed_sample;
using testing::PackedSample;

/// Columns must be whole blocks; scalar types take any number.
std::vector<std::size_t> column_counts(Format format) {
  const std::size_t block = static_cast<std::size_t>(format.block_values());
  if (block == 1) return {1, 31, 32, 33, 100, 288, 520};
  return {block, 3 * block, block == 256 ? 512 : 544 / block * block};
}

TEST(Matrix, EveryRowMatchesTheDefinition) {
  int compared = 0;
  int skipped = 0;
  for (const MatrixKernel& kernel : all_matrix_kernels()) {
    if (!host_runs(kernel)) {
      ++skipped;
      continue;
    }
    unsigned seed = 1;
    for (const std::size_t rows : {1, 17, 33}) {
      for (const std::size_t cols : column_counts(kernel.format)) {
        const PackedSample m =
            packed_sample(kernel.format, rows, cols, rows % 2, testing::gaussian(rows * cols, ++seed, 0.3f));
        for (const std::size_t batch : {1, 3, 9, 27, 50}) {
          if (batch > 3 && rows > 17) continue;
          if (batch > 32 && !kernel.takes_tiles(batch)) continue;  // others have seen every size of tile by then
          expect_matches(kernel, m, batch, testing::gaussian(batch * cols, ++seed));
          if (HasFatalFailure()) return;
          ++compared;
        }
      }
    }
  }
  std::printf("%d products compared, %d rows skipped: this CPU lacks their instructions\n", compared, skipped);
  EXPECT_GT(compared, 0);
}

TEST(Matrix, GroupsOfScales) {
  for (const MatrixKernel& kernel : all_matrix_kernels()) {
    if (!host_runs(kernel) || kernel.format.is_block() || !is_scaled(kernel.format.dtype())) continue;
    for (const std::size_t group : {32, 64, 128}) {
      const PackedSample m = packed_sample(kernel.format, 19, 640, group, testing::gaussian(19 * 640, 5));
      for (const std::size_t batch : {1, 4, 20}) {
        expect_matches(kernel, m, batch, testing::gaussian(batch * 640, 6));
        if (HasFatalFailure()) return;
      }
    }
  }
}

/// Weights far from 0 on one side: zero points at the ends of the codes, or none at all.
TEST(Matrix, ZeroPointsAtTheEnds) {
  for (const MatrixKernel& kernel : all_matrix_kernels()) {
    if (!host_runs(kernel) || kernel.format.is_block()) continue;
    if (info(kernel.format.dtype()).kind != NumberKind::unsigned_integer) continue;
    for (const float sign : {1.0f, -1.0f}) {
      for (const std::size_t group : {0, 1, 32}) {
        std::vector<float> weights = testing::gaussian(19 * 320, 5);
        for (float& w : weights) w = sign * std::fabs(w);
        const PackedSample m = packed_sample(kernel.format, 19, 320, group, weights);
        for (const std::size_t batch : {1, 4, 20}) {
          expect_matches(kernel, m, batch, testing::gaussian(batch * 320, 6));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Matrix, ZerosExtremesAndDenormals) {
  for (const MatrixKernel& kernel : all_matrix_kernels()) {
    if (!host_runs(kernel)) continue;
    const std::size_t cols = 512;
    for (const float size : {0.0f, 1e-20f, 1e4f}) {
      std::vector<float> weights = testing::gaussian(17 * cols, 3, size);
      if (kernel.format == Format(DType::float16) && size == 1e-20f) continue;  // all zeros there, tested by 0
      const PackedSample m = packed_sample(kernel.format, 17, cols, 0, weights);
      for (const float x_size : {0.0f, 1e-38f, 1e3f}) {
        std::vector<float> x = testing::gaussian(2 * cols, 4, x_size);
        expect_matches(kernel, m, 1, std::span(x).first(cols));
        expect_matches(kernel, m, 2, x);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Matrix, NanWeightsGiveNan) {
  for (const MatrixKernel& kernel : all_matrix_kernels()) {
    const bool keeps_nan = kernel.format == Format(DType::fp8e4m3) || kernel.format == Format(DType::fp8e5m2) ||
                           kernel.format == Format(DType::float16) || kernel.format == Format(DType::float32);
    if (!host_runs(kernel) || !keeps_nan) continue;
    std::vector<float> weights = testing::gaussian(20 * 64, 3);
    weights[5 * 64 + 7] = std::numeric_limits<float>::quiet_NaN();
    const PackedSample m = packed_sample(kernel.format, 20, 64, 0, weights);
    for (const std::size_t batch : {1, 15, 40}) {
      std::vector<float> y(batch * 20);
      RunMatrix(kernel, m.source()).multiply(testing::gaussian(batch * 64, 4), batch, y);
      for (std::size_t i = 0; i < y.size(); ++i)
        EXPECT_EQ(std::isnan(y[i]), i % 20 == 5) << kernel.name << " row " << i % 20;
    }
  }
}

TEST(Matrix, GgmlDotProducts) {
  const testing::SafetensorsFile file("ggml/blocks.safetensors");
  const std::vector<float> activation = file.values<float>("activation");
  for (const MatrixKernel& kernel : all_matrix_kernels()) {
    if (!host_runs(kernel) || !kernel.format.is_block() || !info(kernel.format.block()).in_gguf()) continue;
    std::string name(kernel.format.name());
    if (name.ends_with("_k")) name.back() = 'K';
    if (!file.has(name + ".bytes")) continue;
    const std::vector<std::byte> bytes = file.values<std::byte>(name + ".bytes");
    const std::vector<float> decoded = file.values<float>(name + ".dequantized");
    const std::vector<float> dots = file.values<float>(name + ".dot_f64");
    const RunMatrix matrix(kernel, {kernel.format, 12, 1024, bytes});
    std::vector<float> y(12);
    matrix.multiply(activation, 1, y);
    for (std::size_t r = 0; r < 12; ++r) {
      double variance = 0;  // of what int8 rounds away: evenly spread over a step
      for (std::size_t c = 0; c < 1024; ++c) {
        double largest = 0;
        for (std::size_t i = 0; i < 32; ++i)
          largest = std::max(largest, std::fabs(double{activation[c / 32 * 32 + i]}));
        variance += std::pow(double{decoded[r * 1024 + c]} * largest / 120, 2) / 12;
      }
      EXPECT_NEAR(y[r], dots[r], 4 * std::sqrt(variance) + 1e-9) << kernel.name << " row " << r;
    }
  }
}

TEST(Matrix, DoesNotDependOnThreads) {
  for (const MatrixKernel& kernel : all_matrix_kernels()) {
    if (!host_runs(kernel)) continue;
    const PackedSample m = packed_sample(kernel.format, 100, 256, 0, testing::gaussian(100 * 256, 8));
    for (const std::size_t batch : {1, 5, 30}) {
      const std::vector<float> x = testing::gaussian(batch * 256, 9);
      std::vector<float> one(batch * 100), three(batch * 100);
      set_thread_count(1);
      RunMatrix(kernel, m.source()).multiply(x, batch, one);
      set_thread_count(3);
      RunMatrix(kernel, m.source()).multiply(x, batch, three);
      ASSERT_EQ(one, three) << kernel.name << " batch " << batch;
    }
  }
  set_thread_count(0);
}

}  // namespace
}  // namespace imago::kernels
