#pragma once

// Products of packed matrices as the tests of matrix.h define them: sums in double of decoded weights and activations.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "imago/codec.h"
#include "imago/numeric.h"
#include "kernels/matrix.h"

namespace imago::kernels {

/// A matrix packed in one format, with everything that belongs to it.
struct Packed {
  Format format = DType::float32;
  std::size_t rows = 0, cols = 0;
  std::vector<std::byte> bytes;
  std::vector<float> scales;
  std::size_t scale_group = 0;
  std::vector<float> decoded;

  PackedMatrix source() const { return {format, rows, cols, bytes, {scales, scale_group}}; }
};

/// `group`: columns per scale of a dtype, 0: one per tensor, 1: one per row.
inline Packed pack(Format format, std::size_t rows, std::size_t cols, std::size_t group,
                   std::span<const float> weights) {
  Packed m{.format = format, .rows = rows, .cols = cols, .bytes = {}, .scales = {}, .scale_group = 0, .decoded = {}};
  m.bytes.resize(packed_bytes(format, weights.size()));
  m.decoded.resize(weights.size());
  if (format.is_block()) {
    encode(format.block(), weights, m.bytes);
    decode(format.block(), m.bytes, m.decoded);
    return m;
  }
  m.scale_group = group == 0 ? rows * cols : group == 1 ? cols : group;
  if (is_scaled(format.dtype())) {
    for (std::size_t i = 0; i < weights.size(); i += m.scale_group) {
      const std::size_t length = std::min(m.scale_group, weights.size() - i);
      m.scales.push_back(derive_mse_scale(format.dtype(), weights.subspan(i, length)));
    }
  }
  const Scales scales{m.scales, m.scale_group};
  encode(format.dtype(), weights, scales, m.bytes);
  decode(format.dtype(), m.bytes, scales, m.decoded);
  return m;
}

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
inline Expected expected_by_tiles(const Packed& m, std::span<const float> x, std::size_t batch) {
  constexpr double kSlack = 0x1p-21;  // of a weight: what decoding in float32 may be off by
  std::vector<double> weights(m.decoded.size()), doubts(m.decoded.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double weight = m.decoded[i];
    weights[i] = as_bfloat16(weight);
    doubts[i] = std::fabs(as_bfloat16(weight * (1 + kSlack)) - as_bfloat16(weight * (1 - kSlack)));
  }
  Expected e{std::vector<double>(batch * m.rows), std::vector<double>(batch * m.rows)};
  for (std::size_t t = 0; t < batch; ++t) {
    for (std::size_t r = 0; r < m.rows; ++r) {
      double sum = 0, magnitude = 0, doubt = 0;
      for (std::size_t c = 0; c < m.cols; ++c) {
        const double activation = as_bfloat16(x[t * m.cols + c]);
        sum += weights[r * m.cols + c] * activation;
        magnitude += std::fabs(weights[r * m.cols + c] * activation);
        doubt += std::fabs(doubts[r * m.cols + c] * activation);
      }
      e.y[t * m.rows + r] = sum;
      e.bound[t * m.rows + r] = 1e-5 * magnitude + doubt + 1e-6;
    }
  }
  return e;
}

/// The definition: activations as they are, or as int8 has them, times the decoded weights.
inline Expected expected(const Packed& m, std::span<const float> x, std::size_t batch, Arithmetic arithmetic) {
  Expected e{std::vector<double>(batch * m.rows), std::vector<double>(batch * m.rows)};
  for (std::size_t t = 0; t < batch; ++t) {
    std::vector<double> token(m.cols);
    const std::vector<Int8Block> blocks = quantize_activations(x.subspan(t * m.cols, m.cols));
    for (std::size_t c = 0; c < m.cols; ++c) {
      const Int8Block& block = blocks[c / 32];
      token[c] = arithmetic == Arithmetic::exact ? static_cast<double>(x[t * m.cols + c])
                                                 : static_cast<double>(block.scale) * block.q[c % 32];
    }
    for (std::size_t r = 0; r < m.rows; ++r) {
      double sum = 0;
      double magnitude = 0;
      for (std::size_t c = 0; c < m.cols; ++c) {
        const double product = static_cast<double>(m.decoded[r * m.cols + c]) * token[c];
        sum += product;
        magnitude += std::fabs(product);
      }
      e.y[t * m.rows + r] = sum;
      e.bound[t * m.rows + r] = 1e-5 * magnitude + 1e-6;
    }
  }
  return e;
}

inline bool host_runs(const MatrixKernel& row) { return (row.needs & host_cpu_features()) == row.needs; }

inline void expect_matches(const MatrixKernel& kernel, const Packed& m, std::size_t batch, std::span<const float> x) {
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

}  // namespace imago::kernels
