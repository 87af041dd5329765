#pragma once

// The scale of 32 activations in int8. The obvious one makes the largest magnitude 127 steps. Others, under which it is
// a few steps less, round the rest in other ways: what is rounded away is as good as random, its sum over 32 values
// scatters, and the best of four scales loses a seventh less. A least-squares fit to the codes then takes another 2 %
// off.
//
// Kernels of every kind give the same bits: residuals are rounded to 64ths of a step, and sums of their products are
// exact in any order. GPUs take the obvious scale: there each block of threads makes the form for itself.

#include <cstddef>
#include <cstdint>
#include <span>

namespace imago::quant {

inline constexpr int kInt8Scales = 4;  ///< that are tried
/// Steps from zero to the largest magnitude.
inline constexpr float kInt8Steps[kInt8Scales] = {127, 126, 125, 124};

constexpr float int8_square(double steps) noexcept { return static_cast<float>(127 / steps * (127 / steps)); }
/// What squares in steps are multiplied with to be compared.
inline constexpr float kInt8Squares[kInt8Scales] = {int8_square(127), int8_square(126), int8_square(125),
                                                    int8_square(124)};

/// What codes are multiplied with to become values, and values to become codes.
struct Int8Scale {
  float scale, inverse;
};

/// Codes of up to 32 values; returns their scale.
float quantize_to_int8(std::span<const float> x, std::int8_t* q) noexcept;

}  // namespace imago::quant
