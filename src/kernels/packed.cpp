#include "kernels/packed.h"

#include <fmt/format.h>

#include <cmath>

#include "imago/error.h"

namespace imago::kernels {

void check_packed_size(Format format, std::size_t count, std::size_t bytes) {
  const std::size_t wanted = packed_bytes(format, count);
  if (bytes != wanted) {
    throw ShapeError(fmt::format("{} weights in {} take {} bytes, not {}", count, format.name(), wanted, bytes));
  }
}

void check_scales(DType dtype, std::size_t count, const Scales& scales) {
  if (!is_scaled(dtype) || count == 0) return;
  if (scales.group == 0) throw ShapeError("a group of scales must span at least one weight");
  const std::size_t wanted = (count - 1) / scales.group + 1;
  if (scales.values.size() < wanted) {
    throw ShapeError(fmt::format("{} weights in groups of {} need {} scales, not {}", count, scales.group, wanted,
                                 scales.values.size()));
  }
  for (const float scale : scales.values) {
    if (!(scale >= 0) || !std::isfinite(scale)) {
      throw UsageError(fmt::format("a scale of {} is not possible: scales are finite and not negative", scale));
    }
  }
}

}  // namespace imago::kernels
