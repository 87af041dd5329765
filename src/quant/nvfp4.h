#pragma once

// nvfp4: 64 weights in E2M1, each 16 of them with a scale in unsigned E4M3; value = e4m3(scale) · e2m1(code). The
// scales have no room for a tensor's overall magnitude, which producers keep beside the tensor. 4.5 bits per weight.

#include <cstdint>
#include <type_traits>

namespace imago::quant {

struct NVFP4 {
  static constexpr int kValues = 64;
  std::uint8_t scales[4];    // E4M3 without sign; 0x7F (NaN) reads as 0
  std::uint8_t nibbles[32];  // per 16 weights 8 bytes; byte j: code j in the low half, code j + 8 in the high half
};
static_assert(sizeof(NVFP4) == 36 && alignof(NVFP4) == 1 && std::is_trivially_copyable_v<NVFP4>);

}  // namespace imago::quant
