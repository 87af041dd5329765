#pragma once

#include <span>

#include "imago/format.h"

namespace imago::guided {

/// The scale under which `weights` rounded to `dtype` have the least squared error, weighted by `importance` (one
/// factor >= 0 per weight). Types of at most 8 bits whose values are whole numbers are searched fast, the others by
/// derive_mse_scale. Throws ShapeError if the lengths differ.
float weighted_scale(DType dtype, std::span<const float> weights, std::span<const float> importance);

}  // namespace imago::guided
