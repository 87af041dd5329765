#pragma once

// What stands behind ProductScratch.

#include <cstdint>
#include <memory>

#include "device/cuda/stream.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matrix.h"
#include "kernels/cuda/matvec.h"

namespace imago::kernels::cuda {

struct ProductScratch::State {
  std::shared_ptr<Device> device;
  LaunchFacts facts;
  imago::cuda::Array<std::int8_t> q;      ///< int8 form of activations
  imago::cuda::Array<float2_pod> scales;  ///< and its scales
  imago::cuda::Array<float> x;            ///< activations padded to whole groups
  imago::cuda::Array<float> up;           ///< results of `up` where it is of another form than its gate
  MatMulScratch matmul;
};

}  // namespace imago::kernels::cuda
