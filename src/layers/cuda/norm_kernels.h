#pragma once

// Gradients of norms. Forwards are kernels::cuda::norm.

#include <cstddef>

#include "device/cuda/stream.h"

namespace imago::layers::cuda {

using imago::cuda::Stream;

/// grad_x from grad_y, row by row, and the figures of each row, {mean, 1 / deviation}, for the gradient of the weights.
/// grad_x may be grad_y. The mean of an RMS norm is 0.
struct NormBackward {
  const float* x;
  const float* weight;
  const float* grad_y;
  float* grad_x;
  float* figures = nullptr;  ///< [rows][2]; null: not wanted
  std::size_t rows, cols;
  double eps;
  bool layer_norm;
};
void norm_backward(const NormBackward& args, Stream& stream);

}  // namespace imago::layers::cuda
