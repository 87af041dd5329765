#include "kernels/avx512/ops.h"
#include "kernels/avx512/ops_lanes.h"

namespace imago::kernels::avx512 {

namespace {
#include "kernels/generic/math.inl.h"

#include "kernels/generic/attention.inl.h"  // builds on the former, hence its own block
}  // namespace

void run(const AttentionArgs& a) noexcept { attention(a); }

}  // namespace imago::kernels::avx512
