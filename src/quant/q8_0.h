#pragma once

// q8_0: 32 weights share one scale; value[i] = scale · q[i], q in -127..127. 8.5 bits per weight.

#include <cstdint>
#include <type_traits>

#include "quant/packed.h"

namespace imago::quant {

struct Q8_0 {
  static constexpr int kValues = 32;
  PackedHalf scale;
  std::int8_t q[kValues];
};
static_assert(sizeof(Q8_0) == 34 && alignof(Q8_0) == 1 && std::is_trivially_copyable_v<Q8_0>);

}  // namespace imago::quant
