#include "kernels/neon/ops.h"
#include "kernels/neon/ops_lanes.h"

namespace imago::kernels::neon {

namespace {
#include "kernels/generic/math.inl.h"

#include "kernels/generic/attention.inl.h"  // builds on the former, hence its own block
}  // namespace

void run(const AttentionArgs& a) noexcept { attention(a); }

}  // namespace imago::kernels::neon
