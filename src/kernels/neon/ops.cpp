// The operations between products, 4 values at a time.

#include "kernels/folders.h"
#include "kernels/neon/ops_lanes.h"
#include "quant/int8_scale.h"

namespace imago::kernels::neon {
#include "kernels/generic/ops_run.inl.h"
}  // namespace imago::kernels::neon
