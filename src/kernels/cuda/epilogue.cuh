#pragma once

// What is done to a sum before it is stored.

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/matrix.h"

namespace imago::kernels::cuda {

/// `factor`: of gated layers, 1 without; `old`: what y holds if it is added to, else 0.
__device__ __forceinline__ float finished(float sum, float bias, float factor, float old, const GpuEpilogue& epilogue) {
  return activation_of(epilogue.activation, sum + bias) * factor * epilogue.scale + old;
}

}  // namespace imago::kernels::cuda
