#pragma once

// For tests of products on the GPU: matrices in all formats, the definition of their products, and a way there and
// back.

#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "device/cuda/stream.h"
#include "imago/codec.h"
#include "imago/numeric.h"
#include "kernels/cuda/int8_definition.h"
#include "kernels/matrix.h"
#include "testing/random_values.h"

namespace imago::testing {

inline std::vector<Format> all_formats() {
  std::vector<Format> formats;
  for (const DTypeInfo& row : kDTypes) formats.emplace_back(row.id);
  for (const BlockFormatInfo& row : kBlockFormats) formats.emplace_back(row.id);
  return formats;
}

/// A matrix packed in one format, with what the codec of the host makes of it.
struct PackedSample {
  Format format = DType::float32;
  std::size_t rows = 0, cols = 0, scale_group = 0;
  std::vector<std::byte> bytes;
  std::vector<float> scales, decoded;

  kernels::PackedMatrix source() const { return {format, rows, cols, bytes, {scales, scale_group}}; }
};

/// `group`: columns per scale of a dtype, 0: one per tensor, 1: one per row.
inline PackedSample packed_sample(Format format, std::size_t rows, std::size_t cols, std::size_t group, unsigned seed,
                                  float size = 0.3f) {
  const std::vector<float> weights = gaussian(rows * cols, seed, size);
  PackedSample m{
      .format = format, .rows = rows, .cols = cols, .scale_group = 0, .bytes = {}, .scales = {}, .decoded = {}};
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
      m.scales.push_back(derive_scale(format.dtype(), std::span(weights).subspan(i, length)));
    }
  }
  encode(format.dtype(), weights, {m.scales, m.scale_group}, m.bytes);
  decode(format.dtype(), m.bytes, {m.scales, m.scale_group}, m.decoded);
  return m;
}

struct ExpectedProduct {
  std::vector<double> y, magnitude;  ///< [tokens][rows]: the sum in double, and that of the absolute products
};

/// The definition: activations as they are, or as int8 has them, times the decoded weights.
inline ExpectedProduct expected_product(const PackedSample& m, std::span<const float> x, std::size_t tokens,
                                        bool int8) {
  ExpectedProduct e{std::vector<double>(tokens * m.rows), std::vector<double>(tokens * m.rows)};
  for (std::size_t t = 0; t < tokens; ++t) {
    std::vector<double> token(m.cols);
    const std::vector<Int8Block> blocks = int8_of_gpu(x.subspan(t * m.cols, m.cols));
    for (std::size_t c = 0; c < m.cols; ++c) {
      const Int8Block& block = blocks[c / 32];
      token[c] = int8 ? static_cast<double>(block.scale) * block.q[c % 32] : static_cast<double>(x[t * m.cols + c]);
    }
    for (std::size_t r = 0; r < m.rows; ++r) {
      double sum = 0, magnitude = 0;
      for (std::size_t c = 0; c < m.cols; ++c) {
        const double product = static_cast<double>(m.decoded[r * m.cols + c]) * token[c];
        sum += product;
        magnitude += std::fabs(product);
      }
      e.y[t * m.rows + r] = sum;
      e.magnitude[t * m.rows + r] = magnitude;
    }
  }
  return e;
}

/// Values in the memory of the device of `stream`, which has copied them on return.
template <class T>
imago::cuda::Array<T> on_device(std::span<const T> values, imago::cuda::Stream& stream) {
  imago::cuda::Array<T> array(*stream.device(), values.size());
  stream.copy_in(std::as_bytes(values), array.data());
  stream.wait();
  return array;
}
template <class T>
imago::cuda::Array<T> on_device(const std::vector<T>& values, imago::cuda::Stream& stream) {
  return on_device(std::span<const T>(values), stream);
}

/// The values, after all that was queued.
template <class T>
std::vector<T> from_device(const imago::cuda::Array<T>& array, imago::cuda::Stream& stream) {
  std::vector<T> values(array.size());
  stream.copy_out(array.data(), std::as_writable_bytes(std::span(values)));
  stream.wait();
  return values;
}

}  // namespace imago::testing
