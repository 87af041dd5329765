#pragma once

// q5_0: as q4_0 with a fifth bit kept apart; value[i] = scale · (q[i] - 16), q in 0..31. 5.5 bits per weight.

#include <cstdint>
#include <type_traits>

#include "quant/packed.h"

namespace imago::quant {

struct Q5_0 {
  static constexpr int kValues = 32;
  PackedHalf scale;
  std::uint8_t high_bits[4];  // bit i of these 32, first byte first: bit 4 of q[i]
  std::uint8_t nibbles[16];   // byte j: low 4 bits of q[j] and, in the high half, of q[j + 16]
};
static_assert(sizeof(Q5_0) == 22 && alignof(Q5_0) == 1 && std::is_trivially_copyable_v<Q5_0>);

}  // namespace imago::quant
