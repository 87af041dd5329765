#include <fmt/format.h>

#include <array>

#include "base/cpu.h"
#include "base/parallel.h"
#include "files/safetensors.h"
#include "files/tensor_file.h"
#include "imago/error.h"
#include "kernels/codec.h"

namespace imago::files {

namespace {

// As in kernels/codec.cpp: a multiple of every block, and some 10 µs of work.
constexpr std::size_t kGrain = 16384;
constexpr float kOne = 1;

void check_range(const StoredTensor& tensor, std::size_t first, std::size_t count) {
  const std::size_t elements = tensor.shape.elements();
  if (first > elements || count > elements - first) {
    throw ShapeError(fmt::format("{}: tensor '{}' has {} elements: {} from {} on leave it", tensor.file, tensor.name,
                                 elements, count, first));
  }
}

/// The bytes from element `first` on, which begins one.
const std::byte* bytes_at(const StoredTensor& tensor, std::size_t first) {
  const Format format = *tensor.format;
  if (!format.is_block())
    return tensor.bytes.data() + first / 8 * static_cast<std::size_t>(bits(format.dtype())) +
           first % 8 * static_cast<std::size_t>(bits(format.dtype())) / 8;
  const BlockFormatInfo& block = info(format.block());
  return tensor.bytes.data() + first / static_cast<std::size_t>(block.values) * static_cast<std::size_t>(block.bytes);
}

/// REQUIRES: `first` begins a byte or a block.
void decode_aligned(const StoredTensor& tensor, std::size_t first, std::span<float> out) {
  const bool scaled = !tensor.scale_values.empty();
  const kernels::CodecKernel& kernel = kernels::choose_codec(*tensor.format, allowed_cpu_features());
  parallel_for(out.size(), kGrain, [&](std::size_t begin, std::size_t end) {
    kernel.decode({.packed = bytes_at(tensor, first + begin),
                   .count = end - begin,
                   .weights = out.data() + begin,
                   .scales = scaled ? tensor.scale_values.data() : &kOne,
                   .group = scaled ? tensor.scale_group : tensor.shape.elements() + 1,
                   .first = first + begin});
  });
}

void decode_blocks(const StoredTensor& tensor, std::size_t first, std::span<float> out) {
  const auto values = static_cast<std::size_t>(tensor.format->block_values());
  if (first % values != 0 || out.size() % values != 0) {
    throw ShapeError(fmt::format("{}: tensor '{}' of {}: {} elements from {} on are no whole blocks of {}", tensor.file,
                                 tensor.name, tensor.type, out.size(), first, values));
  }
  decode_aligned(tensor, first, out);
}

void decode_dtype(const StoredTensor& tensor, std::size_t first, std::span<float> out) {
  // Eight elements fill whole bytes whatever their width.
  std::array<float, 8> eight;
  if (const std::size_t skip = first % 8; skip != 0) {
    const std::size_t start = first - skip;
    const std::size_t there = std::min(eight.size(), tensor.shape.elements() - start);
    const std::size_t wanted = std::min(out.size(), there - skip);
    decode_aligned(tensor, start, std::span(eight).first(there));
    std::copy_n(eight.begin() + skip, wanted, out.begin());
    first += wanted;
    out = out.subspan(wanted);
  }
  if (!out.empty()) decode_aligned(tensor, first, out);
}

}  // namespace

bool is_decodable(const StoredTensor& tensor) noexcept {
  return tensor.format.has_value() || tensor.safetensors_type.has_value();
}

void decode_tensor(const StoredTensor& tensor, std::size_t first, std::span<float> out) {
  if (!is_decodable(tensor)) {
    throw UnsupportedError(fmt::format("{}: tensor '{}' is of type {}, which imago does not compute with", tensor.file,
                                       tensor.name, tensor.type));
  }
  check_range(tensor, first, out.size());
  if (out.empty()) return;
  if (!tensor.format) {
    decode_special(*tensor.safetensors_type, {tensor.name, tensor.file, tensor.offset, tensor.bytes}, first, out);
  } else if (tensor.format->is_block()) {
    decode_blocks(tensor, first, out);
  } else {
    decode_dtype(tensor, first, out);
  }
}

}  // namespace imago::files
