#include <cmath>

#include "imago/numeric.h"

namespace imago {

float round_half_away(float value) noexcept {
  // Not floor(value + 0.5): that sum rounds up for the float just below 0.5. The difference here is exact.
  const float whole = std::trunc(value);
  return std::fabs(value - whole) >= 0.5f ? whole + std::copysign(1.0f, value) : whole;
}

float simulate_precision(float w, DType dtype, float scale) noexcept {
  return visit(dtype,
               [&]<class T>(std::type_identity<T>) { return dequantize_value<T>(quantize_value<T>(w, scale), scale); });
}

}  // namespace imago
