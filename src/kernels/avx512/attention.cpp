#include "kernels/avx512/ops_lanes.h"
#include "kernels/folders.h"

namespace imago::kernels::avx512 {

namespace {
// clang-format off
#include "kernels/generic/math.inl.h"
#include "kernels/generic/attention_cache.inl.h"
#include "kernels/generic/attention.inl.h"
// clang-format on
}  // namespace

void run(const AttentionArgs& a) noexcept { attention(a); }

}  // namespace imago::kernels::avx512
