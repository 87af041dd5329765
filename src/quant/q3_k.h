#pragma once

// q3_k: a super-block of 256 weights in 16 sub-blocks of 16; value = scale · (s - 32) · (q - 4) with q in 0..7 and a
// 6-bit s per sub-block. 3.4375 bits per weight.

#include <cstdint>
#include <type_traits>

#include "quant/packed.h"

namespace imago::quant {

struct Q3_K {
  static constexpr int kValues = 256;
  std::uint8_t high_bits[32];  // byte l, bit k: bit 2 of the weight l + 32k
  std::uint8_t crumbs[64];     // low 2 bits; per 128 weights 32 bytes, weights l, l+32, l+64, l+96 from the low bits up
  std::uint8_t scales[12];     // s of sub-block j: low 4 bits in byte j % 8 (half j / 8), upper 2 in byte 8 + j % 4
  PackedHalf scale;
};
static_assert(sizeof(Q3_K) == 110 && alignof(Q3_K) == 1 && std::is_trivially_copyable_v<Q3_K>);

}  // namespace imago::quant
