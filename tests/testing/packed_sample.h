#pragma once

// For tests of products, wherever they run: a matrix in any format, and sums of its decoded weights in double.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "imago/codec.h"
#include "imago/numeric.h"
#include "kernels/matrix.h"

namespace imago::testing {

/// A matrix packed in one format, with what the codec of the host makes of it.
struct PackedSample {
  Format format = DType::float32;
  std::size_t rows = 0, cols = 0, scale_group = 0;
  std::vector<std::byte> bytes;
  std::vector<float> scales, decoded, zero_points;

  kernels::PackedMatrix source() const { return {format, rows, cols, bytes, {scales, scale_group, zero_points}}; }
};

/// `group`: columns per scale of a dtype, 0: one per tensor, 1: one per row. Unsigned dtypes have zero points: one for
/// all weights if `common`, as GPUs take them.
inline PackedSample packed_sample(Format format, std::size_t rows, std::size_t cols, std::size_t group,
                                  std::span<const float> weights, bool common = false) {
  PackedSample m{.format = format,
                 .rows = rows,
                 .cols = cols,
                 .scale_group = 0,
                 .bytes = {},
                 .scales = {},
                 .decoded = {},
                 .zero_points = {}};
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
      const AsymmetricScale derived = derive_asymmetric_scale(format, weights.subspan(i, length));
      m.scales.push_back(derived.scale);
      m.zero_points.push_back(derived.zero_point);
    }
  }
  if (info(format.dtype()).kind != NumberKind::unsigned_integer) m.zero_points.clear();
  if (common && !m.zero_points.empty()) m.zero_points.assign(m.scales.size(), m.zero_points.front());
  encode(format.dtype(), weights, m.source().scales, m.bytes);
  decode(format.dtype(), m.bytes, m.source().scales, m.decoded);
  return m;
}

/// [tokens][rows]: the sum in double, and that of the absolute products.
struct ProductSums {
  std::vector<double> y, magnitude;
};

/// Products of activations [tokens][cols] and weights [rows][cols], both after any rounding that the kernel does.
template <class Weight>
ProductSums product_sums(std::span<const Weight> weights, std::span<const double> activations, std::size_t cols) {
  const std::size_t rows = weights.size() / cols, tokens = activations.size() / cols;
  ProductSums sums{std::vector<double>(tokens * rows), std::vector<double>(tokens * rows)};
  for (std::size_t i = 0; i < tokens * rows; ++i) {
    const std::span<const Weight> row = weights.subspan(i % rows * cols, cols);
    const std::span<const double> token = activations.subspan(i / rows * cols, cols);
    for (std::size_t c = 0; c < cols; ++c) {
      const double product = static_cast<double>(row[c]) * token[c];
      sums.y[i] += product;
      sums.magnitude[i] += std::fabs(product);
    }
  }
  return sums;
}

/// What blocks of int8 stand for, of one token.
inline void append_values(std::span<const Int8Block> blocks, std::size_t cols, std::vector<double>& to) {
  for (std::size_t c = 0; c < cols; ++c) {
    to.push_back(static_cast<double>(blocks[c / 32].scale) * blocks[c / 32].q[c % 32]);
  }
}

}  // namespace imago::testing
