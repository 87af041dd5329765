#pragma once

// q4_1: 32 weights with a scale and a lowest value; value[i] = scale · q[i] + min, q in 0..15. Suits weights that are
// not centred on zero. 5 bits per weight.

#include <cstdint>
#include <type_traits>

#include "quant/packed.h"

namespace imago::quant {

struct Q4_1 {
  static constexpr int kValues = 32;
  PackedHalf scale;
  PackedHalf min;
  std::uint8_t nibbles[16];  // byte j: q[j] in the low half, q[j + 16] in the high half
};
static_assert(sizeof(Q4_1) == 20 && alignof(Q4_1) == 1 && std::is_trivially_copyable_v<Q4_1>);

}  // namespace imago::quant
