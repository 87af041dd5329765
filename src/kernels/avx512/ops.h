#pragma once

#include "kernels/ops_args.h"

namespace imago::kernels::avx512 {

#include "kernels/generic/ops_overloads.inl.h"

/// By tiles of bfloat16. For results that may be rounded so, and worth it from some 16 queries on.
void run_by_tiles(const AttentionArgs&) noexcept;

}  // namespace imago::kernels::avx512
