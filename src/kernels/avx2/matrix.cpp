// Products of packed weights, 8 rows at a time.

#include "kernels/avx2/lanes_dot.h"
#include "kernels/folders.h"
#include "quant/block_data.h"

namespace imago::kernels::avx2 {

#include "kernels/generic/matrix.inl.h"

MatrixFunctions matrix(Format format, bool fast) noexcept {
  return visit(format,
               [=]<class T>(std::type_identity<T>) { return fast ? fast_functions<T>() : exact_functions<T>(); });
}

}  // namespace imago::kernels::avx2
