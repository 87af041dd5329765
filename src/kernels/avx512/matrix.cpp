// Products of packed weights, 16 rows at a time, without the instructions for sums of byte products.

#include <concepts>
#include <type_traits>

#include "kernels/avx512/lanes_dot.h"
#include "kernels/folders.h"
#include "quant/block_data.h"

namespace imago::kernels::avx512 {

using namespace imago::quant;  // the plain data of block formats

namespace {
// clang-format off
#include "quant/blocks.inl.h"
#include "kernels/generic/dtype_lanes.inl.h"
#include "kernels/generic/matrix.inl.h"
// clang-format on
}  // namespace

MatrixFunctions matrix(Format format, bool fast) noexcept {
  return visit(format,
               [=]<class T>(std::type_identity<T>) { return fast ? fast_functions<T>() : exact_functions<T>(); });
}

}  // namespace imago::kernels::avx512
