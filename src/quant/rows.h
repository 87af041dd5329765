#pragma once

// Block formats by name: the functions of quant/blocks.h for rows of weights.

#include <cstddef>
#include <span>

#include "imago/format.h"
#include "quant/block_data.h"

namespace imago::quant {

/// REQUIRES: count is a multiple of the block; `packed` holds that many blocks. Importance of weight i is
/// importance[(first + i) % row_values], 1 for all if null.
using EncodeRows = void (*)(const float* weights, std::size_t count, const float* importance, std::size_t row_values,
                            std::size_t first, std::byte* packed) noexcept;
using DecodeRows = void (*)(const std::byte* packed, std::size_t count, float* weights) noexcept;

EncodeRows row_encoder(BlockFormat format) noexcept;
DecodeRows row_decoder(BlockFormat format) noexcept;

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
