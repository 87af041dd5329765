// Products of packed weights, 4 rows at a time.

#include "kernels/folders.h"
#include "kernels/neon/lanes_dot.h"
#include "quant/block_data.h"

namespace imago::kernels::neon {

#include "kernels/generic/matrix.inl.h"

MatrixFunctions matrix(Format format, bool fast) noexcept {
  return visit(format,
               [=]<class T>(std::type_identity<T>) { return fast ? fast_functions<T>() : exact_functions<T>(); });
}

}  // namespace imago::kernels::neon
