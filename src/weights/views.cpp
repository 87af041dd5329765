#include "weights/views.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/checked.h"
#include "imago/codec.h"
#include "imago/error.h"
#include "quant/scheme.h"
#include "weights/view_cache.h"

namespace imago {

namespace {

/// Weights of any dtype that start at a byte: 8 of them fill whole bytes.
constexpr std::size_t kWholeBytes = 8;

void check_slice(const WeightStore& store, std::size_t first, std::size_t count) {
  if (first > store.count() || count > store.count() - first) {
    throw ShapeError(
        fmt::format("weights {} to {} of a store of {}", first, checked_add(first, count, "a slice"), store.count()));
  }
}

bool has_scales(Format format) { return !format.is_block() && is_scaled(format.dtype()); }

/// Whether kernels can read the slice from its codes; the rules are those of kernels::PackedMatrix.
bool is_packable(const Version& version, const MatrixSlice& slice) {
  const Format format = version.scheme().format;
  const std::size_t block = static_cast<std::size_t>(format.block_values());
  if (slice.cols % block != 0 || slice.first % block != 0) return false;
  if (!has_scales(format)) return true;
  const std::size_t group = version.scale_group();
  if (slice.first + slice.rows * slice.cols <= group) return true;
  if (group % slice.cols == 0 && slice.first % slice.cols == 0) return true;
  return version.scheme().granularity == Granularity::group && slice.cols % group == 0 && slice.first % group == 0;
}

/// Memory for weights that are decoded only because they share a byte or a block with those asked for.
std::span<float> scratch(std::size_t count) {
  thread_local std::vector<float> memory;
  if (memory.size() < count) memory.resize(count);
  return std::span(memory).first(count);
}

void decode_blocks(const Version& version, std::size_t first, std::span<float> out) {
  const BlockFormat format = version.scheme().format.block();
  const std::size_t block = static_cast<std::size_t>(info(format).values);
  const std::size_t first_block = first / block;
  const std::size_t end_block = (first + out.size() + block - 1) / block;
  const std::size_t block_bytes = static_cast<std::size_t>(info(format).bytes);
  const auto codes = version.codes().subspan(first_block * block_bytes, (end_block - first_block) * block_bytes);
  if (first % block == 0 && out.size() % block == 0) {
    decode(format, codes, out);
    return;
  }
  const std::span<float> whole = scratch((end_block - first_block) * block);
  decode(format, codes, whole);
  std::ranges::copy(whole.subspan(first % block, out.size()), out.begin());
}

/// Weights of a dtype; `scales` is counted from `first` on.
void decode_codes(const Version& version, std::size_t first, Scales scales, std::span<float> out) {
  const DType dtype = version.scheme().format.dtype();
  const std::size_t begin = first / kWholeBytes * kWholeBytes;
  const std::size_t count = first - begin + out.size();
  const auto codes = version.codes().subspan(packed_bytes(dtype, begin), packed_bytes(dtype, count));
  if (begin == first) {
    decode(dtype, codes, scales, out);
    return;
  }
  const std::span<float> whole = scratch(count);
  decode(dtype, codes, scales, whole);
  std::ranges::copy(whole.last(out.size()), out.begin());
}

void decode_version(const Version& version, std::size_t first, std::span<float> out) {
  if (out.empty()) return;
  if (version.scheme().format.is_block()) return decode_blocks(version, first, out);
  if (!has_scales(version.scheme().format)) return decode_codes(version, first, {}, out);
  const std::size_t group = version.scale_group();
  const std::span<const float> scales = version.scales();
  if (first % group == 0 && first % kWholeBytes == 0) {
    return decode_codes(version, first, {.values = scales.subspan(first / group), .group = group}, out);
  }
  // One scale at a time: what is decoded in front of a piece, to begin at a byte, is thrown away whatever its scale.
  while (!out.empty()) {
    const std::size_t count = std::min(out.size(), group - first % group);
    decode_codes(version, first, {.values = scales.subspan(first / group, 1), .group = count + kWholeBytes},
                 out.first(count));
    first += count;
    out = out.subspan(count);
  }
}

}  // namespace

DecodedWeights::DecodedWeights(std::size_t count)
    : buffer(host_device()->allocate(checked_mul(count, sizeof(float), "decoded weights"))) {}

std::span<float> DecodedWeights::values() noexcept {
  return {reinterpret_cast<float*>(buffer.address()), buffer.size() / sizeof(float)};
}

std::span<const float> DecodedWeights::values() const noexcept {
  return {reinterpret_cast<const float*>(buffer.address()), buffer.size() / sizeof(float)};
}

PackedSlice packed_slice(const WeightStore& store, const Scheme& scheme, const MatrixSlice& slice) {
  check_slice(store, slice.first, checked_mul(slice.rows, slice.cols, "a slice"));
  if (slice.rows == 0 || slice.cols == 0) {
    throw ShapeError(fmt::format("a slice of {} × {} has no products", slice.rows, slice.cols));
  }
  PackedSlice made{
      .matrix = {.rows = slice.rows, .cols = slice.cols, .packed = {}}, .version = store.morph(scheme), .decoded = {}};
  if (made.version == nullptr) {
    made.matrix.packed = std::as_bytes(store.master());
    made.matrix.first = slice.first;
  } else if (is_packable(*made.version, slice)) {
    made.matrix.format = scheme.format;
    made.matrix.packed = made.version->codes();
    made.matrix.scales = {.values = made.version->scales(), .group = made.version->scale_group()};
    made.matrix.first = slice.first;
  } else {
    made.decoded.emplace(slice.rows * slice.cols);
    decode_version(*made.version, slice.first, made.decoded->values());
    made.matrix.packed = made.decoded->buffer.host();
    made.version.reset();
  }
  return made;
}

std::shared_ptr<const kernels::RunMatrix> run_form(const WeightStore& store, const Scheme& requested,
                                                   const MatrixSlice& slice, kernels::Arithmetic arithmetic) {
  const Scheme scheme = checked_scheme(requested);
  return view_cache(store).run_forms.get({scheme, slice.first, slice.rows, slice.cols, arithmetic}, [&] {
    const PackedSlice packed = packed_slice(store, scheme, slice);
    // What was decoded for want of a kernel has none for the fast arithmetic either.
    return std::make_shared<const kernels::RunMatrix>(packed.matrix,
                                                      packed.decoded ? kernels::Arithmetic::exact : arithmetic);
  });
}

std::span<const float> decoded_weights(const WeightStore& store, const Scheme& scheme) {
  return decoded_slice(store, scheme, 0, store.count());
}

std::span<const float> decoded_slice(const WeightStore& store, const Scheme& requested, std::size_t first,
                                     std::size_t count) {
  const Scheme scheme = checked_scheme(requested);
  check_slice(store, first, count);
  if (is_master(scheme)) return store.master().subspan(first, count);
  const auto decoded = view_cache(store).decoded.get({scheme, first, count}, [&] {
    auto values = std::make_shared<DecodedWeights>(count);
    decode_version(*store.morph(scheme), first, values->values());
    return values;
  });
  return decoded->values();
}

void decode_slice(const WeightStore& store, const Scheme& requested, std::size_t first, std::span<float> out) {
  const Scheme scheme = checked_scheme(requested);
  check_slice(store, first, out.size());
  if (is_master(scheme)) {
    std::ranges::copy(store.master().subspan(first, out.size()), out.begin());
  } else {
    decode_version(*store.morph(scheme), first, out);
  }
}

}  // namespace imago
