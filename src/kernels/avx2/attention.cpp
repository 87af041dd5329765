#include "kernels/avx2/ops.h"
#include "kernels/avx2/ops_lanes.h"

namespace imago::kernels::avx2 {

namespace {
#include "kernels/generic/math.inl.h"

#include "kernels/generic/attention.inl.h"  // builds on the former, hence its own block
}  // namespace

void run(const AttentionArgs& a) noexcept { attention(a); }

}  // namespace imago::kernels::avx2
