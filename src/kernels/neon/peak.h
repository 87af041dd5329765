#pragma once

#include "kernels/peak_args.h"

namespace imago::kernels::neon {

PeakLoops peak_loops() noexcept;

}  // namespace imago::kernels::neon
