#pragma once

#include "kernels/peak_args.h"

namespace imago::kernels::avx2 {

PeakLoops peak_loops() noexcept;

}  // namespace imago::kernels::avx2
