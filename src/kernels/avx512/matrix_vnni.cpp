// Products of packed weights, 16 rows at a time, with the instructions for sums of byte products.

#include "kernels/avx512/lanes_dot.h"
#include "kernels/folders.h"
#include "quant/block_data.h"

namespace imago::kernels::avx512 {

#include "kernels/generic/matrix.inl.h"

MatrixFunctions vnni_matrix(Format format, bool fast) noexcept {
  if (!fast) return {};
  return visit(format, []<class T>(std::type_identity<T>) { return integer_functions<T>(); });
}

}  // namespace imago::kernels::avx512
