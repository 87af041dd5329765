#pragma once

#include "kernels/peak_args.h"

namespace imago::kernels::avx512 {

PeakLoops peak_loops() noexcept;
/// The same for processors with VNNI. Only int8 differs.
PeakLoops vnni_peak_loops() noexcept;
/// With tiles of bfloat16 besides.
PeakLoops amx_peak_loops() noexcept;

}  // namespace imago::kernels::avx512
