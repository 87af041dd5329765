#pragma once

// Products of 32 packed codes and int8 activations with as few instructions as there are: codes are not moved to the
// low end of their bytes where a factor can be taken back at the end.
//   CodeDot<Codes>::kFactor              what `dot` is too large by, a power of two
//   CodeDot<Codes>::dot<part, parts>     Σ code · x over one half of the group, or all of it; x: eight words, in the
//   order of
//                                        Codes::words

#include <cstdint>

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/host_device.h"

namespace imago::kernels::cuda {

template <class Codes>
struct CodeDot {
  static constexpr int kFactor = 1;
  template <int kPart, int kParts>
  IMAGO_HD static std::int32_t dot(const std::uint32_t* codes, const std::uint32_t* high,
                                   const std::uint32_t* x) noexcept {
    std::uint32_t words[8];
    Codes::words(codes, high, words);
    std::int32_t sum = 0;
    IMAGO_UNROLL
    for (int i = kPart * 8 / kParts; i < (kPart + 1) * 8 / kParts; ++i) sum = dot4(words[i], x[i], sum);
    return sum;
  }
};

/// Bits from the lowest up, each time what came before times two.
template <>
struct CodeDot<Codes1> {
  static constexpr int kFactor = 128;
  template <int kPart, int kParts>
  IMAGO_HD static std::int32_t dot(const std::uint32_t* codes, const std::uint32_t*, const std::uint32_t* x) noexcept {
    static_assert(kParts == 1);
    std::int32_t sum = 0;
    IMAGO_UNROLL
    for (int k = 0; k < 8; ++k) sum = dot4_unsigned(codes[0] & 0x01010101u << k, x[k], sum * 2);
    return sum;
  }
};

template <>
struct CodeDot<Codes2> {
  static constexpr int kFactor = 64;
  template <int kPart, int kParts>
  IMAGO_HD static std::int32_t dot(const std::uint32_t* codes, const std::uint32_t*, const std::uint32_t* x) noexcept {
    std::int32_t sum = 0;
    IMAGO_UNROLL
    for (int k = 0; k < 4; ++k) {
      sum *= 4;
      IMAGO_UNROLL
      for (int w = kPart * 2 / kParts; w < (kPart + 1) * 2 / kParts; ++w) {
        sum = dot4_unsigned(codes[w] & 0x03030303u << 2 * k, x[4 * w + k], sum);
      }
    }
    return sum;
  }
};

template <>
struct CodeDot<Codes4> {
  static constexpr int kFactor = 16;
  template <int kPart, int kParts>
  IMAGO_HD static std::int32_t dot(const std::uint32_t* codes, const std::uint32_t*, const std::uint32_t* x) noexcept {
    static_assert(kParts == 1);
    std::int32_t sum = 0;
    IMAGO_UNROLL
    for (int w = 0; w < 4; ++w) sum = dot4_unsigned(codes[w] & 0x0F0F0F0Fu, x[2 * w], sum);
    sum *= 16;
    IMAGO_UNROLL
    for (int w = 0; w < 4; ++w) sum = dot4_unsigned(codes[w] & 0xF0F0F0F0u, x[2 * w + 1], sum);
    return sum;
  }
};

/// Nibbles pick bytes of eight by themselves. Those with the top bit pick the sign of a byte, which is 0 in tables of
/// magnitudes, so the levels of each sign are added up apart.
template <class Levels>
struct CodeDot<CodesTable<Levels>> {
  static constexpr int kFactor = 1;
  template <int kPart, int kParts>
  IMAGO_HD static std::int32_t dot(const std::uint32_t* codes, const std::uint32_t*, const std::uint32_t* x) noexcept {
    constexpr std::uint32_t kLow0 = magnitudes(0), kLow1 = magnitudes(4), kUp0 = magnitudes(8), kUp1 = magnitudes(12);
    std::int32_t lower = 0, upper = 0;  // of nibbles below 8, and of the others
    IMAGO_UNROLL
    for (int w = kPart * 4 / kParts; w < (kPart + 1) * 4 / kParts; ++w) {
      const std::uint32_t other = codes[w] ^ 0x88888888u;
      IMAGO_UNROLL
      for (int half = 0; half < 2; ++half) {
        lower = dot4(pick_bytes(kLow0, kLow1, codes[w] >> 16 * half), x[2 * w + half], lower);
        upper = dot4(pick_bytes(kUp0, kUp1, other >> 16 * half), x[2 * w + half], upper);
      }
    }
    return kLowerIsNegative ? upper - lower : lower - upper;
  }

 private:
  static constexpr bool kLowerIsNegative = Levels::kLevels[1] < 0;
  static constexpr std::uint32_t magnitudes(int first) noexcept {
    const auto at = [&](int i) {
      return Levels::kLevels[first + i] < 0 ? -Levels::kLevels[first + i] : Levels::kLevels[first + i];
    };
    return level_word(at(0), at(1), at(2), at(3));
  }
};

}  // namespace imago::kernels::cuda
