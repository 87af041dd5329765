#pragma once

// iq4_nl: 32 weights share one scale; value[i] = scale · level[q[i]] with 16 fixed, unevenly spaced levels from -127
// to 113 (quant/levels.inl.h), closer together near zero where most weights are. 4.5 bits per weight.

#include <cstdint>
#include <type_traits>

#include "quant/packed.h"

namespace imago::quant {

struct IQ4_NL {
  static constexpr int kValues = 32;
  PackedHalf scale;
  std::uint8_t nibbles[16];  // byte j: q[j] in the low half, q[j + 16] in the high half
};
static_assert(sizeof(IQ4_NL) == 18 && alignof(IQ4_NL) == 1 && std::is_trivially_copyable_v<IQ4_NL>);

}  // namespace imago::quant
