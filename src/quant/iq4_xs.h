#pragma once

// iq4_xs: a super-block of 256 weights in 8 sub-blocks of 32; value = scale · (s - 32) · level[q] with the levels of
// iq4_nl and a 6-bit s per sub-block. 4.25 bits per weight.

#include <cstdint>
#include <type_traits>

#include "quant/packed.h"

namespace imago::quant {

struct IQ4_XS {
  static constexpr int kValues = 256;
  PackedHalf scale;
  std::uint8_t scales_high[2];  // little-endian, bits 2j, 2j+1: upper 2 bits of s[j]
  std::uint8_t scales_low[4];   // byte j/2, low half first: low 4 bits of s[j]
  std::uint8_t nibbles[128];    // per 32 weights 16 bytes; byte j: weight j in the low half, j + 16 in the high half
};
static_assert(sizeof(IQ4_XS) == 136 && alignof(IQ4_XS) == 1 && std::is_trivially_copyable_v<IQ4_XS>);

}  // namespace imago::quant
