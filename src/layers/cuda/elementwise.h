#pragma once

// Kernels between the products of layers: derivatives of activations, biases, rows moved and summed. Pointers are
// device memory, float32; everything is queued on the stream. Sums run in a fixed order: the same bits at every call.

#include <cstddef>

#include "device/cuda/stream.h"
#include "kernels/ops_args.h"

namespace imago::layers::cuda {

using imago::cuda::Stream;

/// grad_z = grad_y · f'(z); grad_z may be grad_y.
void activation_backward(kernels::Activation function, const float* z, const float* grad_y, float* grad_z,
                         std::size_t count, Stream& stream);

/// y[row] += bias.
void add_bias(const float* bias, float* y, std::size_t rows, std::size_t cols, Stream& stream);

/// sums[c] += Σ_row x[row][c]; with `scaled`, x is multiplied by (y - figures[2 row]) · figures[2 row + 1]: the
/// gradient of a norm's weight. `scratch` has column_sum_scratch values.
struct ColumnSums {
  const float* x;
  const float* y = nullptr;
  const float* figures = nullptr;
  float* sums;
  std::size_t rows, cols;
  float* scratch;
};
std::size_t column_sum_scratch(std::size_t rows, std::size_t cols);
void add_column_sums(const ColumnSums& args, Stream& stream);

/// Gradients through gate and up of a gated layer: grad_gate = grad · up · f'(gate), grad_up = grad · f(gate). f is
/// silu or relu2.
struct GateBackward {
  const float* gate;
  const float* up;
  const float* grad;
  float* grad_gate;
  float* grad_up;
  std::size_t count;
  bool relu2;
};
void gate_backward(const GateBackward& args, Stream& stream);

/// to[row][i] = factor · from[row][i], rows of `width` values `from_stride` and `to_stride` apart. With `row_factors`,
/// a further factor row_factors[row · factor_stride]; with `add`, what is there stays.
struct RowCopy {
  const float* from;
  std::size_t from_stride;
  float* to;
  std::size_t to_stride;
  std::size_t rows, width;
  float factor = 1;
  const float* row_factors = nullptr;
  std::size_t factor_stride = 0;
  bool add = false;
};
void copy_rows(const RowCopy& args, Stream& stream);

/// out[row · stride] = a[row] · b[row], rows of `width`.
void row_dots(const float* a, const float* b, std::size_t rows, std::size_t width, float* out, std::size_t stride,
              Stream& stream);

/// Softmax backward, row by row: grad_x = p · (g - Σ p · g) · factor; grad_x may be g.
struct SoftmaxBackward {
  const float* p;
  const float* g;
  float* grad_x;
  std::size_t rows, cols;
  std::size_t g_stride, grad_stride;  ///< of rows of g and grad_x
  float factor;
};
void softmax_backward(const SoftmaxBackward& args, Stream& stream);

}  // namespace imago::layers::cuda
