// The five small floating formats, one value at a time. Each encoder is the same idea: find the spacing of the target
// grid around |value|, divide by it (exact: a power of two), round to the nearest even integer, and read the code off
// that integer. It stays close to the text of the standards; the bulk kernels are tested against it bit for bit.

#include <bit>
#include <cmath>
#include <cstdint>

#include "imago/numeric.h"

namespace imago {

namespace {

struct SmallFloat {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  float largest;        // largest finite value
  unsigned max_finite;  // its code, without the sign
};

constexpr SmallFloat kHalf{5, 10, 15, 65504.0f, 0x7BFF};
constexpr SmallFloat kE4M3{4, 3, 7, 448.0f, 0x7E};
constexpr SmallFloat kE5M2{5, 2, 15, 57344.0f, 0x7B};
constexpr SmallFloat kE2M1{2, 1, 1, 6.0f, 0x7};

/// Code of a finite |value|, rounded to nearest even and not limited: what rounds above `largest` continues the count,
/// so that the caller can tell. Codes of one sign are consecutive integers, which makes the carry into the exponent
/// automatic.
unsigned round_to_code(float magnitude, const SmallFloat& f) noexcept {
  if (magnitude == 0) return 0;
  const int exponent = std::max(std::ilogb(magnitude), 1 - f.bias);  // subnormals share the smallest exponent
  const float steps = std::scalbn(magnitude, f.mantissa_bits - exponent);
  const unsigned rounded = static_cast<unsigned>(std::nearbyint(steps));
  const unsigned exponent_field = static_cast<unsigned>(exponent - 1 + f.bias);  // the implicit bit adds the missing 1
  return (exponent_field << f.mantissa_bits) + rounded;
}

unsigned sign_of(float value, int position) noexcept { return (std::bit_cast<std::uint32_t>(value) >> 31) << position; }

/// Value of a code without sign and without specials.
float value_of_code(unsigned code, const SmallFloat& f) noexcept {
  const unsigned mantissa = code & ((1u << f.mantissa_bits) - 1);
  const int exponent_field = static_cast<int>(code >> f.mantissa_bits);
  if (exponent_field == 0) return std::scalbn(static_cast<float>(mantissa), 1 - f.bias - f.mantissa_bits);
  const unsigned significand = mantissa | (1u << f.mantissa_bits);
  return std::scalbn(static_cast<float>(significand), exponent_field - f.bias - f.mantissa_bits);
}

unsigned saturating_code(float value, const SmallFloat& f) noexcept {
  const float magnitude = std::min(std::fabs(value), f.largest);  // also brings infinity into range
  return std::min(round_to_code(magnitude, f), f.max_finite);
}

float with_sign(float magnitude, bool negative) noexcept { return negative ? -magnitude : magnitude; }

}  // namespace

Half to_half(float value) noexcept {
  const unsigned sign = sign_of(value, 15);
  // The upper payload bits survive, as in the processor's own conversion; the quiet bit is set.
  if (std::isnan(value)) {
    const unsigned payload = (std::bit_cast<std::uint32_t>(value) >> 13) & 0x3FF;
    return {static_cast<std::uint16_t>(sign | 0x7E00 | payload)};
  }
  const unsigned code = std::isinf(value) ? 0x7C00u : round_to_code(std::fabs(value), kHalf);
  return {static_cast<std::uint16_t>(sign | std::min(code, 0x7C00u))};
}

float from_half(Half code) noexcept {
  const unsigned magnitude = code.bits & 0x7FFFu;
  const bool negative = (code.bits & 0x8000u) != 0;
  if (magnitude > 0x7C00) {
    const std::uint32_t bits = (negative ? 0x80000000u : 0u) | 0x7FC00000u | ((magnitude & 0x3FFu) << 13);
    return std::bit_cast<float>(bits);
  }
  if (magnitude == 0x7C00) return with_sign(INFINITY, negative);
  return with_sign(value_of_code(magnitude, kHalf), negative);
}

BFloat16 to_bfloat16(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  const std::uint32_t halfway_up = 0x7FFFu + ((bits >> 16) & 1u);  // rounds ties to the even upper half
  return {static_cast<std::uint16_t>((bits + halfway_up) >> 16)};
}

float from_bfloat16(BFloat16 code) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(code.bits) << 16);
}

Fp8E4M3 to_fp8e4m3(float value) noexcept {
  const unsigned code = std::isnan(value) ? 0x7Fu : saturating_code(value, kE4M3);
  return {static_cast<std::uint8_t>(sign_of(value, 7) | code)};
}

float from_fp8e4m3(Fp8E4M3 code) noexcept {
  const unsigned magnitude = code.bits & 0x7Fu;
  const bool negative = (code.bits & 0x80u) != 0;
  return with_sign(magnitude == 0x7F ? NAN : value_of_code(magnitude, kE4M3), negative);
}

Fp8E5M2 to_fp8e5m2(float value) noexcept {
  const unsigned code = std::isnan(value) ? 0x7Fu : saturating_code(value, kE5M2);
  return {static_cast<std::uint8_t>(sign_of(value, 7) | code)};
}

float from_fp8e5m2(Fp8E5M2 code) noexcept {
  const unsigned magnitude = code.bits & 0x7Fu;
  const bool negative = (code.bits & 0x80u) != 0;
  if (magnitude > 0x7C) return with_sign(NAN, negative);
  if (magnitude == 0x7C) return with_sign(INFINITY, negative);
  return with_sign(value_of_code(magnitude, kE5M2), negative);
}

Fp4 to_fp4(float value) noexcept {
  if (std::isnan(value)) return {0};
  return {static_cast<std::uint8_t>(sign_of(value, 3) | saturating_code(value, kE2M1))};
}

float from_fp4(Fp4 code, Fp4Table table) noexcept {
  constexpr float kLegacy[8] = {0, 0.75f, 1, 1.5f, 2, 3, INFINITY, NAN};
  const unsigned magnitude = code.bits & 7u;
  const float value = table == Fp4Table::legacy ? kLegacy[magnitude] : value_of_code(magnitude, kE2M1);
  return with_sign(value, (code.bits & 8u) != 0);
}

}  // namespace imago
