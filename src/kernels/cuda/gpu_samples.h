#pragma once

// For tests of products on the GPU: matrices in all formats, the definition of their products, and a way there and
// back.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "device/cuda/stream.h"
#include "kernels/cuda/int8_definition.h"
#include "testing/packed_sample.h"
#include "testing/random_values.h"

namespace imago::testing {

inline std::vector<Format> all_formats() {
  std::vector<Format> formats;
  for (const DTypeInfo& row : kDTypes) formats.emplace_back(row.id);
  for (const BlockFormatInfo& row : kBlockFormats) formats.emplace_back(row.id);
  return formats;
}

/// Random weights; see the other.
inline PackedSample packed_sample(Format format, std::size_t rows, std::size_t cols, std::size_t group, unsigned seed,
                                  float size = 0.3f) {
  return packed_sample(format, rows, cols, group, gaussian(rows * cols, seed, size));
}

/// The definition: activations as they are, or as int8 has them, times the decoded weights.
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
