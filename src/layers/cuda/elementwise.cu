#include "kernels/cuda/each.cuh"
#include "kernels/cuda/scalar_ops.h"
#include "layers/cuda/kernels.h"

namespace imago::layers::cuda {

using kernels::cuda::block_sum_of;
using kernels::cuda::for_each;
using kernels::cuda::for_each_row;
using kernels::cuda::kThreads;
using kernels::cuda::sigmoid_of;

namespace {

using kernels::Activation;

/// Beyond ±limit the other factor is 0 or the term is constant in float32; without the bound ∞ · 0 would give NaN.
__device__ float bounded(float z, float limit) { return z > limit ? limit : z < -limit ? -limit : z; }

__device__ float derivative(Activation function, float z) {
  switch (function) {
    case Activation::linear: return 1;
    case Activation::relu: return z <= 0 ? 0.0f : 1.0f;
    case Activation::leaky_relu: return z <= 0 ? 0.01f : 1.0f;
    case Activation::relu2: return z <= 0 ? 0.0f : 2 * z;
    case Activation::tanh: {
      const float t = tanhf(z);
      return 1 - t * t;
    }
    case Activation::sigmoid: {
      const float s = sigmoid_of(z);
      return s * (1 - s);
    }
    case Activation::silu: {
      const float s = sigmoid_of(z);
      return s * (1 + bounded(z, 120) * (1 - s));
    }
    case Activation::gelu: {
      constexpr float k = 0.7978845608f, a = 0.044715f;  // sqrt(2 / pi)
      const float x = bounded(z, 16);                    // tanh is ±1 from 6 on
      const float t = tanhf(k * (x + a * x * x * x));
      return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * k * (1 + 3 * a * x * x);
    }
    case Activation::gelu_erf:
    case Activation::clamped_swish: break;  // no layer has them
  }
  return 1;
}

constexpr std::size_t kRowsPerPart = 512;  // rows of a partial column sum, added by one block
constexpr int kSumColumns = 32, kSumLanes = 8;

std::size_t parts_of(std::size_t rows) { return (rows + kRowsPerPart - 1) / kRowsPerPart; }

/// Partial sums of kSumColumns columns over kRowsPerPart rows: [part][cols].
__global__ void __launch_bounds__(kSumColumns* kSumLanes) column_parts(ColumnSums a) {
  const std::size_t c = static_cast<std::size_t>(blockIdx.x) * kSumColumns + threadIdx.x;
  const std::size_t first = static_cast<std::size_t>(blockIdx.y) * kRowsPerPart;
  const std::size_t last = min(a.rows, first + kRowsPerPart);
  float sum = 0;
  if (c < a.cols) {
    for (std::size_t row = first + threadIdx.y; row < last; row += kSumLanes) {
      float value = a.x[row * a.cols + c];
      if (a.figures != nullptr) {
        value *= (a.y[row * a.cols + c] - a.figures[2 * row]) * a.figures[2 * row + 1];
      }
      sum += value;
    }
  }
  __shared__ float lanes[kSumLanes][kSumColumns];
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= a.cols) return;
  for (int lane = 1; lane < kSumLanes; ++lane) sum += lanes[lane][threadIdx.x];
  a.scratch[blockIdx.y * a.cols + c] = sum;
}

}  // namespace

void activation_backward(Activation function, const float* z, const float* grad_y, float* grad_z, std::size_t count,
                         Stream& stream) {
  for_each(count, "activation_backward", stream,
           [=] __device__(std::size_t i) { grad_z[i] = grad_y[i] * derivative(function, z[i]); });
}

void add_bias(const float* bias, float* y, std::size_t rows, std::size_t cols, Stream& stream) {
  for_each(rows * cols, "add_bias", stream, [=] __device__(std::size_t i) { y[i] += bias[i % cols]; });
}

std::size_t column_sum_scratch(std::size_t rows, std::size_t cols) { return parts_of(rows) * cols; }

void add_column_sums(const ColumnSums& args, Stream& stream) {
  if (args.rows == 0 || args.cols == 0) return;
  const std::size_t parts = parts_of(args.rows);
  const dim3 grid(static_cast<unsigned>((args.cols + kSumColumns - 1) / kSumColumns), static_cast<unsigned>(parts));
  column_parts<<<grid, dim3(kSumColumns, kSumLanes), 0, stream.handle()>>>(args);
  imago::cuda::check_launch("column_parts");
  const ColumnSums a = args;
  for_each(a.cols, "column_sums", stream, [=] __device__(std::size_t c) {
    double sum = 0;
    for (std::size_t part = 0; part < parts; ++part) sum += static_cast<double>(a.scratch[part * a.cols + c]);
    a.sums[c] += static_cast<float>(sum);
  });
}

void gate_backward(const GateBackward& args, Stream& stream) {
  const GateBackward a = args;
  for_each(a.count, "gate_backward", stream, [=] __device__(std::size_t i) {
    const float gate = a.gate[i], grad = a.grad[i];
    if (a.relu2) {
      const float positive = fmaxf(gate, 0.0f);
      a.grad_gate[i] = grad * a.up[i] * (2 * positive);
      a.grad_up[i] = grad * (positive * positive);
    } else {
      const float s = sigmoid_of(gate);
      a.grad_gate[i] = grad * a.up[i] * (s * (1 + gate * (1 - s)));
      a.grad_up[i] = grad * (gate * s);
    }
  });
}

void copy_rows(const RowCopy& args, Stream& stream) {
  const RowCopy a = args;
  for_each(a.rows * a.width, "copy_rows", stream, [=] __device__(std::size_t i) {
    const std::size_t row = i / a.width, col = i % a.width;
    float value = a.factor * a.from[row * a.from_stride + col];
    if (a.row_factors != nullptr) value *= a.row_factors[row * a.factor_stride];
    float& to = a.to[row * a.to_stride + col];
    to = a.add ? to + value : value;
  });
}

void row_dots(const float* a, const float* b, std::size_t rows, std::size_t width, float* out, std::size_t stride,
              Stream& stream) {
  for_each_row(rows, "row_dots", stream, [=] __device__(std::size_t row) {
    const float sum =
        block_sum_of<float>(width, [&](std::size_t i) { return a[row * width + i] * b[row * width + i]; });
    if (threadIdx.x == 0) out[row * stride] = sum;
  });
}

void softmax_backward(const SoftmaxBackward& args, Stream& stream) {
  const SoftmaxBackward a = args;
  for_each_row(a.rows, "softmax_backward", stream, [=] __device__(std::size_t row) {
    const float* const p = a.p + row * a.cols;
    const float* const g = a.g + row * a.g_stride;
    const float mean = block_sum_of<float>(a.cols, [&](std::size_t i) { return p[i] * g[i]; });
    float* const out = a.grad_x + row * a.grad_stride;
    for (std::size_t i = threadIdx.x; i < a.cols; i += kThreads) out[i] = p[i] * (g[i] - mean) * a.factor;
  });
}

}  // namespace imago::layers::cuda
