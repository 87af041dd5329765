#pragma once

// For tests of the GPU: matrices in all formats, the definitions of products and of quantized activations, copies to
// and from a device.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "device/cuda/stream.h"
#include "imago/codec.h"
#include "imago/numeric.h"
#include "testing/packed_sample.h"
#include "testing/random_values.h"

namespace imago::testing {

/// Quantized activations as GPU kernels make them: the largest magnitude of a block is 127 steps. (The host chooses
/// among several scales: quant/int8_scale.h.) A last block may be short.
inline std::vector<Int8Block> int8_of_gpu(std::span<const float> x) {
  std::vector<Int8Block> blocks((x.size() + 31) / 32);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const std::span<const float> part = x.subspan(b * 32, std::min<std::size_t>(32, x.size() - b * 32));
    float largest = 0;
    for (const float v : part) largest = std::isfinite(v) ? std::max(largest, std::fabs(v)) : INFINITY;
    const float scale = largest / 127.0f, inverse = 1.0f / scale;
    blocks[b] = {};
    if (!std::isfinite(largest) || !std::isfinite(inverse)) continue;
    blocks[b].scale = scale;
    for (std::size_t i = 0; i < part.size(); ++i) {
      blocks[b].q[i] = static_cast<std::int8_t>(round_half_away(part[i] * inverse));
      blocks[b].sum += blocks[b].q[i];
    }
  }
  return blocks;
}

inline std::vector<Format> all_formats() {
  std::vector<Format> formats;
  for (const DTypeInfo& row : kDTypes) formats.emplace_back(row.id);
  for (const BlockFormatInfo& row : kBlockFormats) formats.emplace_back(row.id);
  return formats;
}

/// Random weights; see packed_sample of testing/packed_sample.h. Of unsigned types those with planes of codes have a
/// zero point.
inline PackedSample packed_sample(Format format, std::size_t rows, std::size_t cols, std::size_t group, unsigned seed,
                                  float size = 0.3f) {
  std::vector<float> weights = gaussian(rows * cols, seed, size);
  if (!format.is_block() && bits(format.dtype()) > 8 && info(format.dtype()).kind == NumberKind::unsigned_integer) {
    for (float& weight : weights) weight = std::fabs(weight);
  }
  return packed_sample(format, rows, cols, group, weights, true);
}

/// Activations, as they are or quantized, times the decoded weights.
inline ProductSums expected_product(const PackedSample& m, std::span<const float> x, std::size_t tokens, bool int8) {
  std::vector<double> activations;
  if (int8) {
    for (std::size_t t = 0; t < tokens; ++t) {
      append_values(int8_of_gpu(x.subspan(t * m.cols, m.cols)), m.cols, activations);
    }
  } else {
    activations.assign(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(tokens * m.cols));
  }
  return product_sums<float>(m.decoded, activations, m.cols);
}

/// Copies values to the device of `stream`, and waits.
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

/// The values after all queued work.
template <class T>
std::vector<T> from_device(const imago::cuda::Array<T>& array, imago::cuda::Stream& stream) {
  std::vector<T> values(array.size());
  stream.copy_out(array.data(), std::as_writable_bytes(std::span(values)));
  stream.wait();
  return values;
}

}  // namespace imago::testing
