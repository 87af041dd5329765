#pragma once

// The roundings behind int8 activations of the GPU and q8_0 caches, for the device, and for the host, whose tests see
// the same bits. On the
// device each product is rounded by itself, since a fused multiply-subtract would see digits that the host has rounded
// away.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/host_device.h"

namespace imago::kernels::cuda {

IMAGO_HD float quotient_rounded(float a, float b) noexcept {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

/// Bits of |x|: integers in the order of the magnitudes, infinities and NaNs above all numbers.
IMAGO_HD std::uint32_t magnitude_bits(float x) noexcept { return bits_of_float(x) & 0x7FFFFFFFu; }

inline constexpr std::uint32_t kInfinityBits = 0x7F800000u;

/// The nearest integer to |t| <= 127, halves away from zero.
IMAGO_HD int nearest_away(float t) noexcept {
  const int whole = static_cast<int>(t);
  const float rest = t - static_cast<float>(whole);  // exact
  return whole + (rest >= 0.5f ? 1 : 0) - (rest <= -0.5f ? 1 : 0);
}

/// Blocks of a row of `cols` activations.
IMAGO_HD std::size_t int8_blocks(std::size_t cols) noexcept { return (cols + 31) / 32; }

/// What the 32 values of a block are multiplied with to become codes, and the codes to become values again.
struct BlockScale {
  float scale, inverse;
};

/// Of an int8 block by the largest of its magnitude_bits: zeros if some value is not finite, or all are next to
/// nothing.
IMAGO_HD BlockScale int8_scale(std::uint32_t largest_bits) noexcept {
  const float scale = quotient_rounded(float_of_bits(largest_bits), 127.0f);
  const float inverse = quotient_rounded(1.0f, scale);
  const bool is_zero = largest_bits >= kInfinityBits || magnitude_bits(inverse) >= kInfinityBits;
  return is_zero ? BlockScale{0, 0} : BlockScale{scale, inverse};
}

/// A value that may be infinite or NaN in a block whose scale is 0 becomes 0.
IMAGO_HD int int8_code(float x, BlockScale block) noexcept {
  return block.scale == 0 ? 0 : nearest_away(times(x, block.inverse));
}

/// What the encoder of q8_0 sees of x: NaN is 0, infinities are the largest numbers.
IMAGO_HD float q8_0_finite(float x) noexcept {
  const std::uint32_t bits = magnitude_bits(x);
  if (bits < kInfinityBits) return x;
  if (bits > kInfinityBits) return 0;
  return x < 0 ? -3.402823466e38f : 3.402823466e38f;
}

/// Of a q8_0 block by the largest of its magnitude_bits, after q8_0_finite. Stored is `scale`, at most 65504, as
/// float16.
IMAGO_HD BlockScale q8_0_scale(std::uint32_t largest_bits) noexcept {
  const float scale = quotient_rounded(float_of_bits(largest_bits), 127.0f);
  return {scale, scale > 1e-36f ? quotient_rounded(1.0f, scale) : 0.0f};
}

IMAGO_HD int q8_0_code(float x, BlockScale block) noexcept {
  const float t = times(x, block.inverse);
  return nearest_away(t < -127.0f ? -127.0f : t > 127.0f ? 127.0f : t);
}

}  // namespace imago::kernels::cuda
