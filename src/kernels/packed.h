#pragma once

// What every reader and writer of packed weights checks first.

#include <cstddef>

#include "imago/codec.h"
#include "imago/format.h"

namespace imago::kernels {

/// Throws ShapeError unless `count` weights in `format` take exactly `bytes` bytes.
void check_packed_size(Format format, std::size_t count, std::size_t bytes);

/// Throws ShapeError if there are too few scales for `count` weights, UsageError for one that is negative, infinite or
/// NaN. Types without a scale pass.
void check_scales(DType dtype, std::size_t count, const Scales& scales);

}  // namespace imago::kernels
