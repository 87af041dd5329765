#pragma once

// tq1_0: 256 ternary weights share one scale; value = scale · (t - 1), t in 0..2. Five ternary digits fill a byte as
// the fraction ceil(number · 256 / 243): multiplying the byte by 3 moves the next digit into the carry, so no division
// is needed to read it. 1.6875 bits per weight.

#include <cstdint>
#include <type_traits>

#include "quant/packed.h"

namespace imago::quant {

struct TQ1_0 {
  static constexpr int kValues = 256;
  std::uint8_t fives[48];  // bytes 0..31: digit n of byte m is weight m + 32n; bytes 32..47: weight 160 + m + 16n
  std::uint8_t fours[4];   // digit n of byte m is weight 240 + m + 4n
  PackedHalf scale;
};
static_assert(sizeof(TQ1_0) == 54 && alignof(TQ1_0) == 1 && std::is_trivially_copyable_v<TQ1_0>);

}  // namespace imago::quant
