#pragma once

// What losses check, on the host and on accelerators.

#include <cstddef>
#include <span>

#include "imago/train.h"

namespace imago {

/// Throws ShapeError if outputs are empty or targets do not belong to them.
void check_sizes(const Loss& loss, const Shape& output, const Shape& target);

/// How many rows have a class; -1 marks a row that is not scored. Throws UsageError for numbers that are not a class
/// below `cols`.
std::size_t count_scored(std::span<const float> classes, std::size_t cols);

/// For multi_head_softmax_ce: throws UsageError and ShapeError for heads and masks that do not fit rows × cols.
void check_heads(const Loss& loss, std::size_t rows, std::size_t cols);

}  // namespace imago
