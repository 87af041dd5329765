#include "kernels/folders.h"

#include "kernels/avx512/ops_lanes.h"
#include "quant/int8_scale.h"

namespace imago::kernels::avx512 {

namespace {
#include "kernels/generic/math.inl.h"

#include "kernels/generic/ops.inl.h"  // builds on the former, hence its own block
}  // namespace

#include "kernels/generic/ops_run.inl.h"
#include "kernels/generic/update.inl.h"

}  // namespace imago::kernels::avx512
