#pragma once

// entity_q4_0: the original engine's own Q4_0, found in `.entity` files; not ggml's. 32 weights share a float32 scale;
// value = scale · q with q in -8..7 (two's complement). 5 bits per weight.

#include <cstdint>
#include <type_traits>

#include "quant/packed.h"

namespace imago::quant {

struct EntityQ4_0 {
  static constexpr int kValues = 32;
  PackedFloat scale;
  std::uint8_t nibbles[16];  // byte j: q[2j] in the low half, q[2j + 1] in the high half
};
static_assert(sizeof(EntityQ4_0) == 20 && alignof(EntityQ4_0) == 1 && std::is_trivially_copyable_v<EntityQ4_0>);

}  // namespace imago::quant
