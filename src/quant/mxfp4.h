#pragma once

// mxfp4 (OCP MX): 32 weights in E2M1 share a power of two; value = 2^(exponent - 127) · e2m1(code). 4.25 bits per
// weight.

#include <cstdint>
#include <type_traits>

namespace imago::quant {

struct MXFP4 {
  static constexpr int kValues = 32;
  std::uint8_t exponent;     // E8M0; 255 means NaN in the standard
  std::uint8_t nibbles[16];  // byte j: code j in the low half, code j + 16 in the high half
};
static_assert(sizeof(MXFP4) == 17 && alignof(MXFP4) == 1 && std::is_trivially_copyable_v<MXFP4>);

}  // namespace imago::quant
