// Whether this build has kernels for a device: asks for one that does nothing.

#include "device/cuda/probe.h"

namespace imago::cuda {

namespace {

__global__ void nothing() {}

}  // namespace

bool has_kernels_for_current() {
  cudaFuncAttributes attributes;
  const bool found = cudaFuncGetAttributes(&attributes, nothing) == cudaSuccess;
  static_cast<void>(cudaGetLastError());
  return found;
}

}  // namespace imago::cuda
