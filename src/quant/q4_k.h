#pragma once

// q4_k: a super-block of 256 weights in 8 sub-blocks of 32; value = scale·s·q - min·m with q in 0..15 and, per sub-
// block, 6-bit s and m. 4.5 bits per weight.

#include <cstdint>
#include <type_traits>

#include "quant/packed.h"

namespace imago::quant {

struct Q4_K {
  static constexpr int kValues = 256;
  PackedHalf scale;
  PackedHalf min;
  std::uint8_t scales[12];    // 8 × 6-bit s and m; see quant/sub_scales.inl.h
  std::uint8_t nibbles[128];  // per 64 weights 32 bytes; byte l: weight l in the low half, l + 32 in the high half
};
static_assert(sizeof(Q4_K) == 144 && alignof(Q4_K) == 1 && std::is_trivially_copyable_v<Q4_K>);

}  // namespace imago::quant
