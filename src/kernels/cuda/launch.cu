#include "kernels/cuda/launch.cuh"

namespace imago::kernels::cuda {

namespace {

__global__ void probe() {}

}  // namespace

bool can_overlap() {
  // Code for older chips, translated by the driver for a newer one, would not wait.
  static const bool is_new = [] {
    cudaFuncAttributes attributes = {};
    return cudaFuncGetAttributes(&attributes, probe) == cudaSuccess && attributes.ptxVersion >= 90;
  }();
  return is_new;
}

}  // namespace imago::kernels::cuda
