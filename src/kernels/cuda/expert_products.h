#pragma once

// Products of few tokens with experts that the device itself has chosen: which matrices are read is known to no host.

#include <cstddef>
#include <cstdint>

#include "device/cuda/stream.h"
#include "imago/format.h"
#include "kernels/cuda/layout.h"
#include "kernels/ops_args.h"

namespace imago::kernels::cuda {

/// What one expert multiplies with: y = activation(matrix x + bias), with `up` also · (up x + up_bias).
struct ExpertMatrices {
  Planes matrix, up;
  const float* bias = nullptr;     ///< null: none
  const float* up_bias = nullptr;  ///< likewise
};

/// Row i of `y` is what expert chosen[i] makes of row i / share of `x`; chosen null: expert i % count_of_experts, such
/// as the heads of tokens. All arrays are in device memory; the matrices of all experts have one format, and so have
/// gate and up.
struct ExpertProducts {
  const ExpertMatrices* experts;
  const std::int32_t* chosen;
  const float* x;  ///< [count / share][cols]
  float* y;        ///< [count][rows]
  std::size_t count, share;
  std::size_t rows, cols;
  std::size_t x_stride = 0, y_stride = 0;  ///< from a row to the next; 0: cols, rows
  std::size_t count_of_experts = 1;        ///< not read unless chosen is null
  Activation activation = Activation::linear;
  bool gated = false;
};

/// Queues them in float32: a warp, or a part of it where rows are short, for each row of each expert, which reads it
/// once.
void multiply_experts(Format format, const ExpertProducts& products, imago::cuda::Stream& stream);

}  // namespace imago::kernels::cuda
