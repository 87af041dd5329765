#pragma once

// q5_k: as q4_k with a fifth bit kept apart; value = scale·s·q - min·m with q in 0..31. 5.5 bits per weight.

#include <cstdint>
#include <type_traits>

#include "quant/packed.h"

namespace imago::quant {

struct Q5_K {
  static constexpr int kValues = 256;
  PackedHalf scale;
  PackedHalf min;
  std::uint8_t scales[12];     // 8 × 6-bit s and m; see quant/sub_scales.inl.h
  std::uint8_t high_bits[32];  // byte l, bit k: bit 4 of the weight l + 32k
  std::uint8_t nibbles[128];   // low 4 bits; per 64 weights 32 bytes as in q4_k
};
static_assert(sizeof(Q5_K) == 176 && alignof(Q5_K) == 1 && std::is_trivially_copyable_v<Q5_K>);

}  // namespace imago::quant
