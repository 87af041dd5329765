#pragma once

// q4_0: 32 weights share one scale; value[i] = scale · (q[i] - 8), q in 0..15. The scale is negative when the weight
// of largest magnitude is positive, so that this weight always lands on q = 0 and uses the full range. 4.5 bits per
// weight.

#include <cstdint>
#include <type_traits>

#include "quant/packed.h"

namespace imago::quant {

struct Q4_0 {
  static constexpr int kValues = 32;
  PackedHalf scale;
  std::uint8_t nibbles[16];  // byte j: q[j] in the low half, q[j + 16] in the high half
};
static_assert(sizeof(Q4_0) == 18 && alignof(Q4_0) == 1 && std::is_trivially_copyable_v<Q4_0>);

}  // namespace imago::quant
