#include "kernels/folders.h"
#include "kernels/neon/ops_lanes.h"

namespace imago::kernels::neon {

namespace {
// clang-format off
#include "kernels/generic/math.inl.h"
#include "kernels/generic/attention_cache.inl.h"
#include "kernels/generic/attention.inl.h"
// clang-format on
}  // namespace

void run(const AttentionArgs& a) noexcept { attention(a); }

}  // namespace imago::kernels::neon
