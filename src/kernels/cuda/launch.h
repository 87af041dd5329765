#pragma once

namespace imago::kernels::cuda {

/// Whether this build and the present device have launches that overlap, and clusters: the device is of sm_90 or later,
/// and so is the code it runs.
bool can_overlap();

}  // namespace imago::kernels::cuda
