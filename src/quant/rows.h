#pragma once

// Block formats by name: what callers without templates need of quant/blocks.h.

#include <cstddef>
#include <span>

#include "imago/format.h"
#include "quant/block_data.h"

namespace imago::quant {

/// How to take a block of a format apart.
struct BlockParts {
  int group;        ///< weights per scale
  bool has_offset;  ///< whether Expanded::offsets is set
  void (*expand)(const std::byte* block, Expanded& out) noexcept;
};
BlockParts block_parts(BlockFormat format) noexcept;

/// Throws ShapeError unless `importance` is empty or a whole number of blocks that divides `count`; UsageError if a
/// factor is negative or not finite.
void check_importance(Format format, std::size_t count, std::span<const float> importance);

}  // namespace imago::quant
