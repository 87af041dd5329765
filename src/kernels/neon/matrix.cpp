// Products of packed weights, 4 rows at a time.

#include <concepts>
#include <type_traits>

#include "kernels/neon/lanes_dot.h"
#include "kernels/neon/matrix.h"
#include "quant/block_format.h"
#include "quant/expanded.h"

namespace imago::kernels::neon {

using namespace imago::quant;  // the block types

namespace {
// clang-format off
#include "quant/blocks.inl.h"
#include "kernels/generic/dtype_lanes.inl.h"
#include "kernels/generic/matrix.inl.h"
// clang-format on
}  // namespace

MatrixFunctions block_matrix(BlockFormat format, bool fast) noexcept {
  return quant::visit(format, [=]<class Block>(std::type_identity<Block>) {
    return fast ? fast_block_functions<Block>() : exact_block_functions<Block>();
  });
}

MatrixFunctions dtype_matrix(DType dtype, bool fast) noexcept {
  return imago::visit(dtype, [=]<class T>(std::type_identity<T>) {
    return fast ? fast_dtype_functions<T>() : exact_dtype_functions<T>();
  });
}

}  // namespace imago::kernels::neon
