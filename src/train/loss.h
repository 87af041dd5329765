#pragma once

// What every form of a loss checks, on the host and on accelerators.

#include <cstddef>
#include <span>

#include "imago/train.h"

namespace imago {

/// Throws ShapeError if outputs are empty or targets do not belong to them.
void check_sizes(const Loss& loss, const Shape& output, const Shape& target);

/// Rows with a class, of class numbers as they stand in a tensor of floats; -1 is a row that is not scored. Throws
/// UsageError for what is no class of `cols`.
std::size_t count_scored(std::span<const float> classes, std::size_t cols);

/// Of multi_head_softmax_ce. Throws UsageError and ShapeError for heads and masks that do not fit rows × cols.
void check_heads(const Loss& loss, std::size_t rows, std::size_t cols);

}  // namespace imago
