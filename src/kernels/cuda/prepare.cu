#include "kernels/cuda/prepare.h"

#include <cuda_runtime.h>

#include <cstdint>

#include "device/cuda/check.h"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/scalar_ops.h"

namespace imago::kernels::cuda {

namespace {

constexpr int kValues = 4;  // of a thread that makes the int8 form: eight threads make a block of 32
constexpr unsigned kThreads = 256;

unsigned blocks_for(std::size_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

__device__ __forceinline__ std::size_t thread_number() {
  return static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
}

/// One thread per four columns of the padded rows.
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const float* x, std::uint32_t rows, std::uint32_t cols, bool aligned, Int8Out out) {
  wait_for_previous();
  const std::uint32_t blocks = (cols + 31) / 32;
  const std::uint32_t pieces = blocks * (32 / kValues);
  const std::size_t row = thread_number() / pieces;
  const std::uint32_t column = static_cast<std::uint32_t>(thread_number() % pieces) * kValues;
  const bool active = row < rows;
  float values[kValues] = {};
  if (active) {
    const float* from = x + row * cols + column;
    if (aligned) {
      const float4 v = *reinterpret_cast<const float4*>(from);
      values[0] = v.x;
      values[1] = v.y;
      values[2] = v.z;
      values[3] = v.w;
    } else {
#pragma unroll
      for (int i = 0; i < kValues; ++i) values[i] = column + i < cols ? from[i] : 0.0f;
    }
  }
  const std::size_t to = active ? row * blocks * 32 + column : 0;
  store_quantized(values, active, out.q + to, out.scales + to / 32);
}

__global__ void __launch_bounds__(kThreads)
    pad_kernel(const float* x, std::size_t rows, std::uint32_t cols, std::uint32_t padded, float* to) {
  const std::size_t i = thread_number();
  if (i >= rows * padded) return;
  const std::size_t row = i / padded, column = i % padded;
  to[i] = column < cols ? x[row * cols + column] : 0.0f;
}

__global__ void __launch_bounds__(kThreads)
    floats_kernel(const std::int8_t* q, const float2_pod* scales, std::size_t count, float* to) {
  const std::size_t i = thread_number();
  if (i < count) to[i] = static_cast<float>(q[i]) * scales[i / 32].x;
}

__global__ void __launch_bounds__(kThreads) gated_kernel(const GatedArgs a) {
  const std::size_t i = thread_number();
  if (i >= a.tokens * a.rows) return;
  float* y = a.y + i / a.rows * a.y_stride + i % a.rows;
  const float value = activation_of(a.epilogue.activation, a.gate[i]) * a.up[i] * a.epilogue.scale;
  *y = a.epilogue.accumulate ? *y + value : value;
}

}  // namespace

void quantize(const float* x, std::size_t rows, std::size_t cols, Int8Out out, Stream& stream) {
  if (rows == 0 || cols == 0) return;
  const bool aligned = cols % 32 == 0 && reinterpret_cast<std::uintptr_t>(x) % 16 == 0;
  launch_overlapped("quantize", quantize_kernel, blocks_for(rows * (padded_cols(cols) / kValues)), kThreads, 0, stream,
                    x, static_cast<std::uint32_t>(rows), static_cast<std::uint32_t>(cols), aligned, out);
}

void pad_rows(const float* x, std::size_t rows, std::size_t cols, float* to, Stream& stream) {
  const std::size_t padded = padded_cols(cols);
  pad_kernel<<<blocks_for(rows * padded), kThreads, 0, stream.handle()>>>(x, rows, static_cast<std::uint32_t>(cols),
                                                                          static_cast<std::uint32_t>(padded), to);
  imago::cuda::check_launch("pad_rows");
}

void floats_of_int8(const std::int8_t* q, const float2_pod* scales, std::size_t rows, std::size_t cols, float* to,
                    Stream& stream) {
  const std::size_t count = rows * padded_cols(cols);
  floats_kernel<<<blocks_for(count), kThreads, 0, stream.handle()>>>(q, scales, count, to);
  imago::cuda::check_launch("floats_of_int8");
}

void finish_gated(const GatedArgs& args, Stream& stream) {
  gated_kernel<<<blocks_for(args.tokens * args.rows), kThreads, 0, stream.handle()>>>(args);
  imago::cuda::check_launch("finish_gated");
}

}  // namespace imago::kernels::cuda
