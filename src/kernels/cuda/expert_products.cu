#include <cuda_runtime.h>

#include "device/cuda/check.h"
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/expert_products.h"
#include "kernels/cuda/scalar_ops.h"

namespace imago::kernels::cuda {

namespace {

constexpr unsigned kWarps = 8;  // of a block

__device__ __forceinline__ float warp_total(float value) {
#pragma unroll
  for (unsigned step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

/// This lane's share of row · x: every 32nd group of columns.
template <class Form>
__device__ __forceinline__ float share_of_row(const Planes& planes, std::uint32_t row, const float* x, unsigned lane) {
  float sum = 0;
  for (std::uint32_t group = lane; group < planes.groups; group += 32) {
    float weights[kGroup];
    decode_group<Form>(planes, row, group, weights);
    const std::uint32_t first = group * static_cast<std::uint32_t>(kGroup);
    if (first + kGroup <= planes.cols) {
#pragma unroll
      for (unsigned i = 0; i < kGroup; ++i) sum += weights[i] * __ldg(x + first + i);
    } else {
      for (unsigned i = 0; first + i < planes.cols; ++i) sum += weights[i] * __ldg(x + first + i);
    }
  }
  return sum;
}

/// Grid: rows / kWarps × rows of y.
template <class Form>
__global__ void __launch_bounds__(kWarps * 32) expert_rows(ExpertProducts a) {
  const unsigned lane = threadIdx.x % 32;
  const std::uint32_t row = blockIdx.x * kWarps + threadIdx.x / 32;
  const std::size_t i = blockIdx.y;
  if (row >= a.rows) return;
  const ExpertMatrices& expert =
      a.experts[a.chosen == nullptr ? i % a.count_of_experts : static_cast<std::size_t>(a.chosen[i])];
  const float* const x = a.x + i / a.share * (a.x_stride == 0 ? a.cols : a.x_stride);
  float value = warp_total(share_of_row<Form>(expert.matrix, row, x, lane));
  if (expert.bias != nullptr) value += expert.bias[row];
  value = activation_of(a.activation, value);
  if (a.gated) {
    float up = warp_total(share_of_row<Form>(expert.up, row, x, lane));
    if (expert.up_bias != nullptr) up += expert.up_bias[row];
    value *= up_of(a.activation, up);
  }
  if (lane == 0) a.y[i * (a.y_stride == 0 ? a.rows : a.y_stride) + row] = value;
}

}  // namespace

void multiply_experts(Format format, const ExpertProducts& products, imago::cuda::Stream& stream) {
  if (products.count == 0 || products.rows == 0) return;
  const dim3 grid(static_cast<unsigned>((products.rows + kWarps - 1) / kWarps), static_cast<unsigned>(products.count));
  visit_form(format, [&]<class Form>(std::type_identity<Form>) {
    expert_rows<Form><<<grid, kWarps * 32, 0, stream.handle()>>>(products);
  });
  imago::cuda::check_launch("products of experts");
}

}  // namespace imago::kernels::cuda
