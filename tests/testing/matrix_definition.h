#pragma once

// Products of packed matrices as the tests of matrix.h define them: sums in double of decoded weights and activations.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "base/cpu.h"
#include "kernels/matrix.h"
#include "testing/packed_sample.h"

namespace imago::testing {

using kernels::Arithmetic;
using kernels::MatrixKernel;
using kernels::RunMatrix;

struct Expected {
  std::vector<double> y, bound;  // the sum in double, and how far a kernel may be from it
};

/// Rounded to the nearest bfloat16, ties to even; numbers too small for a normal float32 are zero.
inline double as_bfloat16(double value) {
  if (std::fabs(value) < std::numeric_limits<float>::min()) return 0;
  int exponent = 0;
  const double mantissa = std::frexp(value, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8);
}

/// The definition of fast products by tiles: activations and weights as bfloat16 has them. A kernel decodes weights in
/// float32, so one that lies as good as between two neighbours may become either of them.
inline Expected expected_by_tiles(const PackedSample& m, std::span<const float> x, std::size_t batch) {
  constexpr double kSlack = 0x1p-21;  // of a weight: what decoding in float32 may be off by
  std::vector<double> weights(m.decoded.size()), doubts(m.decoded.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double weight = m.decoded[i];
    weights[i] = as_bfloat16(weight);
    doubts[i] = std::fabs(as_bfloat16(weight * (1 + kSlack)) - as_bfloat16(weight * (1 - kSlack)));
  }
  std::vector<double> activations;
  for (const float value : x.first(batch * m.cols)) activations.push_back(as_bfloat16(value));
  const ProductSums sums = product_sums<double>(weights, activations, m.cols);
  const ProductSums doubt = product_sums<double>(doubts, activations, m.cols);
  Expected e{sums.y, {}};
  for (std::size_t i = 0; i < sums.y.size(); ++i) {
    e.bound.push_back(1e-5 * sums.magnitude[i] + doubt.magnitude[i] + 1e-6);
  }
  return e;
}

/// The definition: activations as they are, or as int8 has them, times the decoded weights.
inline Expected expected(const PackedSample& m, std::span<const float> x, std::size_t batch, Arithmetic arithmetic) {
  std::vector<double> activations;
  if (arithmetic == Arithmetic::exact) {
    activations.assign(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(batch * m.cols));
  } else {
    for (std::size_t t = 0; t < batch; ++t) {
      append_values(quantize_activations(x.subspan(t * m.cols, m.cols)), m.cols, activations);
    }
  }
  const ProductSums sums = product_sums<float>(m.decoded, activations, m.cols);
  Expected e{sums.y, {}};
  for (const double magnitude : sums.magnitude) e.bound.push_back(1e-5 * magnitude + 1e-6);
  return e;
}

inline bool host_runs(const MatrixKernel& row) { return (row.needs & host_cpu_features()) == row.needs; }

inline void expect_matches(const MatrixKernel& kernel, const PackedSample& m, std::size_t batch,
                           std::span<const float> x) {
  const RunMatrix matrix(kernel, m.source());
  std::vector<float> y(batch * m.rows + 1, 77.0f);
  matrix.multiply(x, batch, std::span(y).first(batch * m.rows));
  ASSERT_EQ(y.back(), 77.0f) << kernel.name << " writes past the end";
  const bool rounds = kernel.takes_tiles(batch) && kernel.arithmetic == Arithmetic::fast;
  const Expected e = rounds ? expected_by_tiles(m, x, batch) : expected(m, x, batch, kernel.arithmetic);
  for (std::size_t i = 0; i < e.y.size(); ++i) {
    ASSERT_NEAR(y[i], e.y[i], e.bound[i])
        << kernel.name << (kernel.arithmetic == Arithmetic::fast ? " fast " : " exact ") << m.rows << " × " << m.cols
        << ", batch " << batch << ", token " << i / m.rows << ", row " << i % m.rows << ", groups of " << m.scale_group;
  }
}

}  // namespace imago::testing
