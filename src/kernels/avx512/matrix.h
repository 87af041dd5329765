#pragma once

#include "imago/format.h"
#include "kernels/matrix_args.h"

namespace imago::kernels::avx512 {

inline constexpr int kPanelRows = 16;

/// Null functions where the format has no such form.
MatrixFunctions block_matrix(BlockFormat format, bool fast) noexcept;
MatrixFunctions dtype_matrix(DType dtype, bool fast) noexcept;

/// The same for processors with VNNI: only integer products, all else is as above.
MatrixFunctions vnni_block_matrix(BlockFormat format, bool fast) noexcept;
MatrixFunctions vnni_dtype_matrix(DType dtype, bool fast) noexcept;

/// The same with products of many tokens by tiles.
MatrixFunctions amx_block_matrix(BlockFormat format, bool fast) noexcept;
MatrixFunctions amx_dtype_matrix(DType dtype, bool fast) noexcept;

}  // namespace imago::kernels::avx512
