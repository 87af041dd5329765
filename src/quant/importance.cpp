#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "imago/error.h"
#include "quant/rows.h"

namespace imago::quant {

void check_importance(BlockFormat format, std::size_t count, std::span<const float> importance) {
  if (importance.empty()) return;
  const std::size_t values = static_cast<std::size_t>(info(format).values);
  if (importance.size() % values != 0 || count % importance.size() != 0) {
    throw ShapeError(fmt::format("an importance of {} columns does not fit {} weights in blocks of {}",
                                 importance.size(), count, values));
  }
  const auto bad = std::find_if(importance.begin(), importance.end(),
                                [](float factor) { return !(factor >= 0) || !std::isfinite(factor); });
  if (bad != importance.end()) {
    throw UsageError(fmt::format("the importance of column {} is {}; it must be finite and not negative",
                                 bad - importance.begin(), *bad));
  }
}

}  // namespace imago::quant
