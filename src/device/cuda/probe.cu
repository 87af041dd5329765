// Asks the runtime about an empty kernel to find out what kernels of this build can do on the current device.

#include "device/cuda/check.h"

namespace imago::cuda {

namespace {

__global__ void empty_kernel() {}

}  // namespace

bool has_kernels_for_current() {
  cudaFuncAttributes attributes;
  const bool found = cudaFuncGetAttributes(&attributes, empty_kernel) == cudaSuccess;
  static_cast<void>(cudaGetLastError());
  return found;
}

bool can_overlap() {
  // Code for older chips, translated by the driver for a newer one, would not wait for the previous kernel.
  static const bool is_new = [] {
    cudaFuncAttributes attributes = {};
    return cudaFuncGetAttributes(&attributes, empty_kernel) == cudaSuccess && attributes.ptxVersion >= 90;
  }();
  return is_new;
}

}  // namespace imago::cuda
