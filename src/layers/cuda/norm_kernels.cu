#include "layers/cuda/norm_kernels.h"

#include "layers/cuda/launch.cuh"

namespace imago::layers::cuda {

namespace {

__device__ void rms_row(const NormBackward& a, const float* x, const float* dy, float* dx, float* figures) {
  const double n = static_cast<double>(a.cols);
  const double squares = block_sum_of<double>(a.cols, [&](std::size_t i) { return x[i] * x[i]; });
  const double product = block_sum_of<double>(a.cols, [&](std::size_t i) { return dy[i] * a.weight[i] * x[i]; });
  const double inverse = rsqrt(squares / n + a.eps);
  const float scale = static_cast<float>(inverse);
  const float towards_x = static_cast<float>(product * inverse * inverse * inverse / n);
  for (std::size_t i = threadIdx.x; i < a.cols; i += kThreads) {
    dx[i] = dy[i] * a.weight[i] * scale - x[i] * towards_x;
  }
  if (figures != nullptr && threadIdx.x == 0) {
    figures[0] = 0;
    figures[1] = scale;
  }
}

__device__ void layer_norm_row(const NormBackward& a, const float* x, const float* dy, float* dx, float* figures) {
  const double n = static_cast<double>(a.cols);
  const float mean = static_cast<float>(block_sum_of<double>(a.cols, [&](std::size_t i) { return x[i]; }) / n);
  const double squares = block_sum_of<double>(a.cols, [&](std::size_t i) { return (x[i] - mean) * (x[i] - mean); });
  const float inverse = static_cast<float>(rsqrt(squares / n + a.eps));
  const double products =
      block_sum_of<double>(a.cols, [&](std::size_t i) { return dy[i] * a.weight[i] * ((x[i] - mean) * inverse); });
  const double sum = block_sum_of<double>(a.cols, [&](std::size_t i) { return dy[i] * a.weight[i]; });
  const float mean_dy = static_cast<float>(sum / n), mean_product = static_cast<float>(products / n);
  for (std::size_t i = threadIdx.x; i < a.cols; i += kThreads) {
    dx[i] = (dy[i] * a.weight[i] - mean_dy - (x[i] - mean) * inverse * mean_product) * inverse;
  }
  if (figures != nullptr && threadIdx.x == 0) {
    figures[0] = mean;
    figures[1] = inverse;
  }
}

}  // namespace

void norm_backward(const NormBackward& args, Stream& stream) {
  const NormBackward a = args;
  for_each_row(a.rows, "norm_backward", stream, [=] __device__(std::size_t row) {
    const std::size_t at = row * a.cols;
    float* const figures = a.figures == nullptr ? nullptr : a.figures + 2 * row;
    if (a.layer_norm) {
      layer_norm_row(a, a.x + at, a.grad_y + at, a.grad_x + at, figures);
    } else {
      rms_row(a, a.x + at, a.grad_y + at, a.grad_x + at, figures);
    }
  });
}

}  // namespace imago::layers::cuda
