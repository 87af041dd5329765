#pragma once

// Arithmetic on single values, written once for host and device: activation functions, and the roundings of quantized
// activations and q8_0 caches. Results on host and device are the same bits: on the device each product is rounded
// separately, since a fused multiply-subtract would see digits that the host has rounded away.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/host_device.h"
#include "kernels/ops_args.h"

#ifndef __CUDACC__
#include <cmath>
#endif

namespace imago::kernels::cuda {

// ---- activation functions in float32, with relative errors of a few 1e-7

IMAGO_HD float sigmoid_of(float x) noexcept { return 1.0f / (1.0f + expf(-x)); }

IMAGO_HD float activation_of(Activation function, float x) noexcept {
  switch (function) {
    case Activation::linear: return x;
    case Activation::relu: return x < 0 ? 0 : x;
    case Activation::relu2: return x < 0 ? 0 : x * x;
    case Activation::leaky_relu: return x < 0 ? 0.01f * x : x;
    case Activation::silu: return x * sigmoid_of(x);
    case Activation::gelu:  // 0.5 · (1 + tanh u) is sigmoid(2u)
      return x * sigmoid_of(1.5957691216f * (x + 0.044715f * x * x * x));
    case Activation::tanh: return tanhf(x);
    case Activation::sigmoid: return sigmoid_of(x);
    case Activation::gelu_erf: return 0.5f * x * erfcf(-0.70710678f * x);
    case Activation::clamped_swish: {
      const float limited = x > kSwishLimit ? kSwishLimit : x;
      return limited * sigmoid_of(kSwishSlope * limited);
    }
  }
  return x;
}

/// What the other operand of an activation becomes (kernels/ops_args.h).
IMAGO_HD float up_of(Activation function, float up) noexcept {
  if (function != Activation::clamped_swish) return up;
  return 1.0f + (up > kSwishLimit ? kSwishLimit : up < -kSwishLimit ? -kSwishLimit : up);
}

// ---- rounding to int8

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

/// Blocks of 32 columns in a row of `cols` activations.
IMAGO_HD std::size_t int8_blocks(std::size_t cols) noexcept { return (cols + 31) / 32; }

/// `inverse` turns the 32 values of a block into codes, `scale` turns codes back into values.
struct BlockScale {
  float scale, inverse;
};

/// The scale of a block of int8 activations whose largest magnitude_bits these are. Zeros if a value is not finite, or
/// if all are so small that the inverse overflows.
IMAGO_HD BlockScale int8_scale(std::uint32_t largest_bits) noexcept {
  const float scale = quotient_rounded(float_of_bits(largest_bits), 127.0f);
  const float inverse = quotient_rounded(1.0f, scale);
  const bool is_zero = largest_bits >= kInfinityBits || magnitude_bits(inverse) >= kInfinityBits;
  return is_zero ? BlockScale{0, 0} : BlockScale{scale, inverse};
}

/// In a block whose scale is 0 every value becomes 0, infinities and NaN too.
IMAGO_HD int int8_code(float x, BlockScale block) noexcept {
  return block.scale == 0 ? 0 : nearest_away(times(x, block.inverse));
}

/// x as the encoder of q8_0 takes it: NaN is 0, infinities are the largest finite numbers.
IMAGO_HD float q8_0_finite(float x) noexcept {
  const std::uint32_t bits = magnitude_bits(x);
  if (bits < kInfinityBits) return x;
  if (bits > kInfinityBits) return 0;
  return x < 0 ? -3.402823466e38f : 3.402823466e38f;
}

/// The scale of a q8_0 block whose largest magnitude_bits, after q8_0_finite, these are. It is stored as float16, at
/// most 65504.
IMAGO_HD BlockScale q8_0_scale(std::uint32_t largest_bits) noexcept {
  const float scale = quotient_rounded(float_of_bits(largest_bits), 127.0f);
  return {scale, scale > 1e-36f ? quotient_rounded(1.0f, scale) : 0.0f};
}

IMAGO_HD int q8_0_code(float x, BlockScale block) noexcept {
  const float t = times(x, block.inverse);
  return nearest_away(t < -127.0f ? -127.0f : t > 127.0f ? 127.0f : t);
}

}  // namespace imago::kernels::cuda
