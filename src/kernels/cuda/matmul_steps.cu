#include "kernels/cuda/matmul_steps.cuh"

#include "device/cuda/check.h"
#include "kernels/cuda/host_device.h"

namespace imago::kernels::cuda {

namespace {

constexpr std::uint32_t kThreads = 256;

__device__ __forceinline__ float value_of(const Activations& from, std::size_t token, std::size_t column) {
  if (token >= from.count || column >= from.cols) return 0.0f;
  if (from.x != nullptr) return from.x[token * from.cols + column];
  const std::size_t padded = (from.cols + kGroup - 1) / kGroup * kGroup;
  return from.q[token * padded + column] * from.scales[(token * padded + column) / kGroup].x;
}

/// 16 threads for the 128 columns of a token: each writes one 16-byte piece of a panel.
__global__ void panels_kernel(Activations from, uint4* to, std::uint32_t capacity) {
  const std::uint32_t piece = threadIdx.x % 16;
  const std::uint32_t token = blockIdx.y * (kThreads / 16) + threadIdx.x / 16;
  if (token >= capacity) return;
  std::uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::size_t column = static_cast<std::size_t>(blockIdx.x) * kChunk + panel_column(piece * 8 + 2 * i);
    pairs[i] = bfloat_pair(value_of(from, token, column), value_of(from, token, column + 1));
  }
  const std::size_t panel = 2 * blockIdx.x + piece / 8;
  to[(panel * capacity + token) * 8 + (piece % 8 ^ token % 8)] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

template <Rounded kType>
__global__ void rows_kernel(Activations from, std::uint32_t* to, std::size_t pairs) {
  const std::size_t pair = blockIdx.x * kThreads + threadIdx.x;
  const std::size_t token = blockIdx.y;
  if (pair >= pairs) return;
  const float a = value_of(from, token, 2 * pair);
  const float b = value_of(from, token, 2 * pair + 1);
  constexpr float kMax = 65504.0f;
  to[token * pairs + pair] = kType == Rounded::bfloat16
                                 ? bfloat_pair(a, b)
                                 : half_pair(fminf(fmaxf(a, -kMax), kMax), fminf(fmaxf(b, -kMax), kMax));
}

__global__ void floats_kernel(Activations from, float* to) {
  const std::size_t column = blockIdx.x * kThreads + threadIdx.x;
  if (column < from.cols) to[blockIdx.y * from.cols + column] = value_of(from, blockIdx.y, column);
}

__global__ void numbers_kernel(std::int32_t* to, std::uint32_t count) {
  const std::uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i < count) to[i] = static_cast<std::int32_t>(i);
}

__global__ void finish_kernel(FinishArgs a) {
  const std::uint32_t row = blockIdx.x * kThreads + threadIdx.x;
  const std::size_t token = blockIdx.y;
  if (row >= a.rows) return;
  const std::size_t plane = a.tokens * a.row_stride;
  const float* from = a.sums + token * a.row_stride + row;
  float sum = 0, up = a.gated ? 0.0f : 1.0f;
  for (std::uint32_t i = 0; i < a.splits; ++i) sum += from[i * plane];
  if (a.gated) {
    for (std::uint32_t i = 0; i < a.splits; ++i) up += from[(a.splits + i) * plane];
  }
  float* const to = a.y + token * a.y_stride + row;
  const float bias = a.epilogue.bias == nullptr ? 0.0f : a.epilogue.bias[row];
  *to = finished(sum, bias, up, a.epilogue.accumulate ? *to : 0.0f, a.epilogue);
}

std::uint32_t blocks(std::size_t count, std::size_t of) { return static_cast<std::uint32_t>((count + of - 1) / of); }

}  // namespace

void write_panels(const Activations& from, std::uint16_t* to, std::uint32_t capacity, std::uint32_t chunks,
                  cudaStream_t stream) {
  const dim3 grid(chunks, blocks(capacity, kThreads / 16));
  panels_kernel<<<grid, kThreads, 0, stream>>>(from, reinterpret_cast<uint4*>(to), capacity);
  imago::cuda::check_launch("activations in panels");
}

void write_rows(const Activations& from, Rounded type, std::uint16_t* to, std::size_t stride, cudaStream_t stream) {
  const dim3 grid(blocks(stride / 2, kThreads), static_cast<std::uint32_t>(from.count));
  std::uint32_t* const pairs = reinterpret_cast<std::uint32_t*>(to);
  if (type == Rounded::bfloat16) {
    rows_kernel<Rounded::bfloat16><<<grid, kThreads, 0, stream>>>(from, pairs, stride / 2);
  } else {
    rows_kernel<Rounded::float16><<<grid, kThreads, 0, stream>>>(from, pairs, stride / 2);
  }
  imago::cuda::check_launch("activations in 16 bits");
}

void write_floats(const Activations& from, float* to, cudaStream_t stream) {
  floats_kernel<<<dim3(blocks(from.cols, kThreads), static_cast<std::uint32_t>(from.count)), kThreads, 0, stream>>>(
      from, to);
  imago::cuda::check_launch("activations in float32");
}

void write_numbers(std::int32_t* to, std::uint32_t count, cudaStream_t stream) {
  numbers_kernel<<<blocks(count, kThreads), kThreads, 0, stream>>>(to, count);
  imago::cuda::check_launch("numbers");
}

void finish(const FinishArgs& args, cudaStream_t stream) {
  finish_kernel<<<dim3(blocks(args.rows, kThreads), args.tokens), kThreads, 0, stream>>>(args);
  imago::cuda::check_launch("end of a product");
}

}  // namespace imago::kernels::cuda
