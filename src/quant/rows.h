#pragma once

// The block formats one block at a time, in plain C++: the definition of correct. The algorithms are in the *.inl.h
// files.

#include <cstddef>
#include <span>

#include "imago/format.h"
#include "quant/expanded.h"

namespace imago::quant {

/// REQUIRES: count is a multiple of the block; `packed` holds that many blocks. Importance of weight i is
/// importance[(first + i) % row_values], 1 for all if null.
using EncodeRows = void (*)(const float* weights, std::size_t count, const float* importance, std::size_t row_values,
                            std::size_t first, std::byte* packed) noexcept;
using DecodeRows = void (*)(const std::byte* packed, std::size_t count, float* weights) noexcept;

EncodeRows row_encoder(BlockFormat format) noexcept;
DecodeRows row_decoder(BlockFormat format) noexcept;

/// How to take a block of a format apart: values per scale, whether there are offsets, and the function that does it.
struct BlockParts {
  int group;
  bool has_offset;
  void (*expand)(const std::byte* block, Expanded& out) noexcept;
};
BlockParts block_parts(BlockFormat format) noexcept;

/// Throws ShapeError unless `importance` is empty or a whole number of blocks that divides `count`; UsageError if a
/// factor is negative or not finite.
void check_importance(BlockFormat format, std::size_t count, std::span<const float> importance);

}  // namespace imago::quant
