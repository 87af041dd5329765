#pragma once

// How much arithmetic this machine can do at best: what matrix products are measured against.

#include "base/cpu.h"
#include "kernels/folders.h"

namespace imago::kernels {

/// The loops of the best instruction set within `features`.
PeakLoops choose_peak_loops(CpuFeatures features);

/// Operations per second of `loop` on all threads of the pool: the best of several passes, some 0.1 s in all.
double measure_peak(const PeakLoop& loop);

}  // namespace imago::kernels
