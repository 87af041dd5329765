// The operations between products, 16 values at a time.

#include "kernels/avx512/ops_lanes.h"
#include "kernels/folders.h"
#include "quant/int8_scale.h"

namespace imago::kernels::avx512 {
#include "kernels/generic/ops_run.inl.h"
}  // namespace imago::kernels::avx512
