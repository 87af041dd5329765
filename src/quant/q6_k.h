#pragma once

// q6_k: a super-block of 256 weights in 16 sub-blocks of 16; value = scale · s · (q - 32) with q in 0..63 and an 8-bit
// signed s per sub-block. 6.5625 bits per weight.

#include <cstdint>
#include <type_traits>

#include "quant/packed.h"

namespace imago::quant {

struct Q6_K {
  static constexpr int kValues = 256;
  std::uint8_t nibbles[128];  // low 4 bits; per 128 weights 64 bytes: byte l (0..63) holds weights l and l + 64
  std::uint8_t crumbs[64];  // upper 2 bits; per 128 weights 32 bytes: weights l, l+32, l+64, l+96 from the low bits up
  std::int8_t scales[16];
  PackedHalf scale;
};
static_assert(sizeof(Q6_K) == 210 && alignof(Q6_K) == 1 && std::is_trivially_copyable_v<Q6_K>);

}  // namespace imago::quant
