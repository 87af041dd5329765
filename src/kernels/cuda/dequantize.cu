// Decodes packed weights to float32. A thread decodes a group into shared memory, and the block writes consecutive
// values from it.

#include <cuda_runtime.h>

#include <cstdint>

#include "device/cuda/check.h"
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/matrix.h"

namespace imago::kernels::cuda {

namespace {

constexpr unsigned kThreads = 128;

/// Row i of `out` is row ids[i] of the matrix, or row i if ids is null. blockIdx.y strides over rows, blockIdx.x over
/// 128 groups of a row.
template <class Form>
__global__ void __launch_bounds__(kThreads)
    dequantize_kernel(const __grid_constant__ Planes planes, const std::int32_t* ids, std::uint32_t count, float scale,
                      float* out) {
  __shared__ float values[kThreads][kGroup + 1];  // a stride of 33 avoids bank conflicts
  const std::uint32_t first = blockIdx.x * kThreads;
  const std::uint32_t group = first + threadIdx.x;
  for (std::uint32_t i = blockIdx.y; i < count; i += gridDim.y) {
    const std::uint32_t row = ids != nullptr ? static_cast<std::uint32_t>(ids[i]) : i;
    if (group < planes.groups) {
      float decoded[kGroup];
      decode_group<Form>(planes, row, group, decoded);
#pragma unroll
      for (int j = 0; j < static_cast<int>(kGroup); ++j) values[threadIdx.x][j] = times(decoded[j], scale);
    }
    __syncthreads();
    const std::uint32_t begin = first * kGroup;
    const std::uint32_t end = min(begin + kThreads * static_cast<std::uint32_t>(kGroup), planes.cols);
    for (std::uint32_t c = begin + threadIdx.x; c < end; c += kThreads) {
      out[static_cast<std::size_t>(i) * planes.cols + c] = values[(c - begin) / kGroup][(c - begin) % kGroup];
    }
    __syncthreads();
  }
}

void launch(const GpuMatrix& matrix, const std::int32_t* ids, std::size_t count, float scale, float* out,
            Stream& stream) {
  if (count == 0) return;
  const Planes& planes = matrix.planes();
  const dim3 grid((planes.groups + kThreads - 1) / kThreads, static_cast<unsigned>(count < 32768 ? count : 32768));
  visit_form(matrix.format(), [&]<class Form>(std::type_identity<Form>) {
    dequantize_kernel<Form>
        <<<grid, kThreads, 0, stream.handle()>>>(planes, ids, static_cast<std::uint32_t>(count), scale, out);
  });
  imago::cuda::check_launch("dequantize");
}

}  // namespace

void dequantize(const GpuMatrix& matrix, float* to, Stream& stream) {
  launch(matrix, nullptr, matrix.rows(), 1.0f, to, stream);
}

void dequantize_rows(const GpuMatrix& matrix, const std::int32_t* ids, std::size_t count, float scale, float* out,
                     Stream& stream) {
  launch(matrix, ids, count, scale, out, stream);
}

}  // namespace imago::kernels::cuda
