#include <cuda_runtime.h>

#include <algorithm>
#include <bit>

#include "device/cuda/check.h"
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/expert_products.h"
#include "kernels/cuda/scalar_ops.h"

namespace imago::kernels::cuda {

namespace {

constexpr unsigned kWarps = 8;  // of a block

/// The sum over each `lanes` neighbouring lanes, a power of two.
__device__ __forceinline__ float sum_of_lanes(float value, unsigned lanes) {
  for (unsigned step = lanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

/// A share of row · x: every group of columns that is `lane` after a multiple of `lanes`.
template <class Form>
__device__ __forceinline__ float share_of_row(const Planes& planes, std::uint32_t row, const float* x, unsigned lane,
                                              unsigned lanes) {
  float sum = 0;
  for (std::uint32_t group = lane; group < planes.groups; group += lanes) {
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

/// Grid: blocks of kWarps · 32 / lanes rows × rows of y. Short rows take `lanes` lanes of a warp, which has several.
template <class Form>
__global__ void __launch_bounds__(kWarps * 32) expert_rows(ExpertProducts a, unsigned lanes) {
  const unsigned lane = threadIdx.x % lanes;
  const std::uint32_t row = (blockIdx.x * (kWarps * 32) + threadIdx.x) / lanes;
  const std::size_t i = blockIdx.y;
  const bool inside = row < a.rows;
  if (__ballot_sync(~0u, inside) == 0) return;  // whole warps: the lanes of a warp sum together
  const ExpertMatrices& expert =
      a.experts[a.chosen == nullptr ? i % a.count_of_experts : static_cast<std::size_t>(a.chosen[i])];
  const float* const x = a.x + i / a.share * (a.x_stride == 0 ? a.cols : a.x_stride);
  float value = sum_of_lanes(inside ? share_of_row<Form>(expert.matrix, row, x, lane, lanes) : 0.0f, lanes);
  if (inside && expert.bias != nullptr) value += expert.bias[row];
  value = activation_of(a.activation, value);
  if (a.gated) {
    float up = sum_of_lanes(inside ? share_of_row<Form>(expert.up, row, x, lane, lanes) : 0.0f, lanes);
    if (inside && expert.up_bias != nullptr) up += expert.up_bias[row];
    value *= up_of(a.activation, up);
  }
  if (inside && lane == 0) a.y[i * (a.y_stride == 0 ? a.rows : a.y_stride) + row] = value;
}

}  // namespace

void multiply_experts(Format format, const ExpertProducts& products, imago::cuda::Stream& stream) {
  if (products.count == 0 || products.rows == 0) return;
  const auto lanes =
      static_cast<unsigned>(std::min<std::size_t>(32, std::bit_ceil((products.cols + kGroup - 1) / kGroup)));
  const std::size_t rows_of_block = kWarps * 32 / lanes;
  const dim3 grid(static_cast<unsigned>((products.rows + rows_of_block - 1) / rows_of_block),
                  static_cast<unsigned>(products.count));
  visit_form(format, [&]<class Form>(std::type_identity<Form>) {
    expert_rows<Form><<<grid, kWarps * 32, 0, stream.handle()>>>(products, lanes);
  });
  imago::cuda::check_launch("products of experts");
}

}  // namespace imago::kernels::cuda
