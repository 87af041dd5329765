#pragma once

// The functions of Activation on one value, in float32: relative errors of a few 1e-7. For kernels that end in one.

#include "kernels/cuda/host_device.h"
#include "kernels/ops_args.h"

#ifndef __CUDACC__
#include <cmath>
#endif

namespace imago::kernels::cuda {

IMAGO_HD float sigmoid_of(float x) noexcept { return 1.0f / (1.0f + expf(-x)); }

IMAGO_HD float activation_of(Activation function, float x) noexcept {
  switch (function) {
    case Activation::linear: return x;
    case Activation::relu: return x < 0 ? 0 : x;
    case Activation::relu2: return x < 0 ? 0 : x * x;
    case Activation::leaky_relu: return x < 0 ? 0.01f * x : x;
    case Activation::silu: return x * sigmoid_of(x);
    case Activation::gelu:  // 0.5 · (1 + tanh u) is sigmoid(2u)
      return x * sigmoid_of(1.5957691216f * (x + 0.044715f * x * x * x));
    case Activation::tanh: return tanhf(x);
    case Activation::sigmoid: return sigmoid_of(x);
  }
  return x;
}

}  // namespace imago::kernels::cuda
