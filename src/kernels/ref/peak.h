#pragma once

#include "kernels/peak_args.h"

namespace imago::kernels::ref {

PeakLoops peak_loops() noexcept;

}  // namespace imago::kernels::ref
