#pragma once

// tq2_0: 256 ternary weights share one scale; value = scale · (t - 1), t in 0..2 stored in two bits (3 would read as
// 2). 2.0625 bits per weight, faster to read than tq1_0.

#include <cstdint>
#include <type_traits>

#include "quant/packed.h"

namespace imago::quant {

struct TQ2_0 {
  static constexpr int kValues = 256;
  std::uint8_t crumbs[64];  // per 128 weights 32 bytes; byte m holds weights m, m+32, m+64, m+96 from the low bits up
  PackedHalf scale;
};
static_assert(sizeof(TQ2_0) == 66 && alignof(TQ2_0) == 1 && std::is_trivially_copyable_v<TQ2_0>);

}  // namespace imago::quant
