#pragma once

// q2_k: a super-block of 256 weights in 16 sub-blocks of 16; value = scale·s·q - min·m with q in 0..3 and, per sub-
// block, 4-bit s and m. 2.625 bits per weight.

#include <cstdint>
#include <type_traits>

#include "quant/packed.h"

namespace imago::quant {

struct Q2_K {
  static constexpr int kValues = 256;
  std::uint8_t scales[16];  // per sub-block: s in the low half, m in the high half
  std::uint8_t crumbs[64];  // per 128 weights 32 bytes; byte l holds weights l, l+32, l+64, l+96 from the low bits up
  PackedHalf scale;
  PackedHalf min;
};
static_assert(sizeof(Q2_K) == 84 && alignof(Q2_K) == 1 && std::is_trivially_copyable_v<Q2_K>);

}  // namespace imago::quant
