// Softmax of rows: a warp for a narrow row, a block for a wide one.

#include "device/cuda/check.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.cuh"

namespace imago::kernels::cuda {

namespace {

struct Work {
  float* x;
  std::size_t rows, cols;
  float scale, cap;
};

__device__ float score(const Work& a, float v) {
  const float t = a.scale * v;
  // -inf is masked, with a cap too.
  return a.cap > 0 && t != -INFINITY ? a.cap * tanhf(t / a.cap) : t;
}

__global__ void softmax_rows(Work a) {
  __shared__ float room[33];
  const std::size_t row = blockIdx.x * std::size_t{blockDim.y} + threadIdx.y;
  if (row >= a.rows) return;
  float* const x = a.x + row * a.cols;
  float largest = -INFINITY;
  for (std::size_t i = threadIdx.x; i < a.cols; i += blockDim.x) largest = fmaxf(largest, score(a, x[i]));
  largest = team_max(largest, room);
  const float base = largest == -INFINITY ? 0.0f : largest;
  float sum = 0;
  for (std::size_t i = threadIdx.x; i < a.cols; i += blockDim.x) {
    const float e = expf(score(a, x[i]) - base);
    x[i] = e;
    sum += e;
  }
  sum = team_sum(sum, room);
  const float factor = sum == 0 ? 0.0f : 1.0f / sum;
  for (std::size_t i = threadIdx.x; i < a.cols; i += blockDim.x) x[i] *= factor;
}

}  // namespace

void softmax(float* x, std::size_t rows, std::size_t cols, float scale, float cap, Stream& stream) {
  if (rows == 0 || cols == 0) return;
  const Work work{x, rows, cols, scale, cap};
  if (cols <= 256) {
    softmax_rows<<<static_cast<unsigned>((rows + 3) / 4), dim3(32, 4), 0, stream.handle()>>>(work);
  } else {
    const unsigned threads = cols <= 1024 ? 128 : cols <= 8192 ? 256 : 1024;
    softmax_rows<<<static_cast<unsigned>(rows), threads, 0, stream.handle()>>>(work);
  }
  imago::cuda::check_launch("softmax");
}

}  // namespace imago::kernels::cuda
