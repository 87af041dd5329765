#pragma once

namespace imago::cuda {

/// Whether the kernels of this build run on the current device: its architecture, or PTX that it can translate.
bool has_kernels_for_current();

}  // namespace imago::cuda
