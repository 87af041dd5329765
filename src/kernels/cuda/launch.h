#pragma once

namespace imago::kernels::cuda {

/// Whether kernels of this build can overlap on the present device: it is of sm_90 or later, and so is the code it
/// runs.
bool can_overlap();

}  // namespace imago::kernels::cuda
