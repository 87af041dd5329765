#pragma once

// What every run form of a matrix asks of its source.

#include <cstddef>

#include "kernels/matrix.h"

namespace imago::kernels {

/// Throws ShapeError if sizes do not fit, UsageError for a scale that is negative or not finite.
void check_matrix(const PackedMatrix& m);

/// Columns that share a scale in the run form of a dtype: 0 when whole rows do. Throws ShapeError for what a run form
/// has no place for.
std::size_t columns_per_scale(const PackedMatrix& m);

}  // namespace imago::kernels
