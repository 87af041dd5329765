#pragma once

#include "imago/format.h"
#include "kernels/matrix_args.h"

namespace imago::kernels::ref {

inline constexpr int kPanelRows = 1;

/// Products with the decoded weights, summed in double: the definition of correct. Null functions where the format has
/// no such form.
MatrixFunctions block_matrix(BlockFormat format, bool fast) noexcept;
MatrixFunctions dtype_matrix(DType dtype, bool fast) noexcept;

}  // namespace imago::kernels::ref
