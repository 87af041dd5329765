#pragma once

// Errors of the CUDA runtime, and what the kernels of this build can do on a device. Every call of the runtime goes
// through `check`, every launch is followed by `check_launch`.

#include <cuda_runtime_api.h>

namespace imago::cuda {

/// Throws DeviceError with "what: message of the runtime" if a call failed. If memory is short, says how much is free.
void check(cudaError_t status, const char* what);

/// Throws DeviceError if the last launch was refused.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

/// Whether the kernels of this build run on the current device: its architecture, or PTX that it can translate.
bool has_kernels_for_current();

/// Whether this build and the current device have overlapped launches and clusters: the device is sm_90 or later, and
/// so is the code it runs.
bool can_overlap();

}  // namespace imago::cuda
