// The operations between products, 8 values at a time.

#include "kernels/avx2/ops_lanes.h"
#include "kernels/folders.h"
#include "quant/int8_scale.h"

namespace imago::kernels::avx2 {
#include "kernels/generic/ops_run.inl.h"
}  // namespace imago::kernels::avx2
