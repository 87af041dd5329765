#pragma once

// Every call of the CUDA runtime goes through `check`, every launch is followed by `check_launch`.

#include <cuda_runtime_api.h>

namespace imago::cuda {

/// Throws DeviceError for a call that failed: "what: the runtime's words". For memory it says how much there is.
void check(cudaError_t status, const char* what);

/// Throws DeviceError if the last launch was refused.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

}  // namespace imago::cuda
