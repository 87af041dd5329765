// The public bulk conversions: check once, choose a kernel, split the work over the pool.

#include "imago/codec.h"

#include "base/parallel.h"
#include "kernels/codec.h"
#include "kernels/packed.h"
#include "quant/rows.h"

namespace imago {

namespace {

// A part must be a multiple of every block (256) and big enough to be worth a thread: 16 Ki weights take some 10 µs.
constexpr std::size_t kGrain = 16384;

std::size_t offset_of(Format format, std::size_t index) {
  const std::size_t values = format.is_block() ? static_cast<std::size_t>(info(format.block()).values) : 8;
  const std::size_t bytes = format.is_block() ? static_cast<std::size_t>(info(format.block()).bytes)
                                              : static_cast<std::size_t>(bits(format.dtype()));
  return index / values * bytes;
}

constexpr float kOne = 1.0f;

void run_encode(Format format, kernels::EncodeArgs whole) {
  const kernels::CodecKernel& kernel = kernels::choose_codec(format, allowed_cpu_features());
  parallel_for(whole.count, kGrain, [&](std::size_t begin, std::size_t end) {
    kernels::EncodeArgs part = whole;
    part.weights += begin;
    part.count = end - begin;
    part.packed += offset_of(format, begin);
    part.first = begin;
    kernel.encode(part);
  });
}

void run_decode(Format format, kernels::DecodeArgs whole) {
  const kernels::CodecKernel& kernel = kernels::choose_codec(format, allowed_cpu_features());
  parallel_for(whole.count, kGrain, [&](std::size_t begin, std::size_t end) {
    kernels::DecodeArgs part = whole;
    part.packed += offset_of(format, begin);
    part.count = end - begin;
    part.weights += begin;
    part.first = begin;
    kernel.decode(part);
  });
}

}  // namespace

void encode(DType dtype, std::span<const float> weights, Scales scales, std::span<std::byte> packed) {
  kernels::check_packed_size(dtype, weights.size(), packed.size());
  kernels::check_scales(dtype, weights.size(), scales);
  const bool scaled = is_scaled(dtype);
  run_encode(dtype, {.weights = weights.data(),
                     .count = weights.size(),
                     .packed = packed.data(),
                     .scales = scaled ? scales.values.data() : &kOne,
                     .group = scaled ? scales.group : weights.size() + 1,
                     .first = 0,
                     .importance = nullptr,
                     .row_values = 0});
}

void decode(DType dtype, std::span<const std::byte> packed, Scales scales, std::span<float> weights) {
  kernels::check_packed_size(dtype, weights.size(), packed.size());
  kernels::check_scales(dtype, weights.size(), scales);
  const bool scaled = is_scaled(dtype);
  run_decode(dtype, {.packed = packed.data(),
                     .count = weights.size(),
                     .weights = weights.data(),
                     .scales = scaled ? scales.values.data() : &kOne,
                     .group = scaled ? scales.group : weights.size() + 1,
                     .first = 0});
}

void encode(BlockFormat format, std::span<const float> weights, std::span<std::byte> packed,
            std::span<const float> importance) {
  kernels::check_packed_size(format, weights.size(), packed.size());
  quant::check_importance(format, weights.size(), importance);
  run_encode(format, {.weights = weights.data(),
                      .count = weights.size(),
                      .packed = packed.data(),
                      .scales = nullptr,
                      .group = 0,
                      .first = 0,
                      .importance = importance.empty() ? nullptr : importance.data(),
                      .row_values = importance.size()});
}

void decode(BlockFormat format, std::span<const std::byte> packed, std::span<float> weights) {
  kernels::check_packed_size(format, weights.size(), packed.size());
  run_decode(format, {.packed = packed.data(),
                      .count = weights.size(),
                      .weights = weights.data(),
                      .scales = nullptr,
                      .group = 0,
                      .first = 0});
}

}  // namespace imago
