#include "kernels/cuda/activations.h"

#include <cuda_runtime.h>

#include "kernels/cuda/each.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul_tile.cuh"
#include "kernels/cuda/ops.h"

namespace imago::kernels::cuda {

namespace {

__device__ __forceinline__ float value_of(const Activations& from, std::size_t token, std::size_t column) {
  if (token >= from.count || column >= from.cols) return 0.0f;
  if (from.x != nullptr) return from.x[token * from.cols + column];
  const std::size_t padded = (from.cols + kGroup - 1) / kGroup * kGroup;
  return from.q[token * padded + column] * from.scales[(token * padded + column) / kGroup].x;
}

/// 16 threads for the 128 columns of a token: each writes 16 bytes of a panel.
__global__ void panels_kernel(Activations from, const std::int32_t* sources, uint4* to, std::uint32_t capacity) {
  const std::uint32_t sixteenth = threadIdx.x % 16;
  const std::uint32_t token = blockIdx.y * (kThreads / 16) + threadIdx.x / 16;
  if (token >= capacity) return;
  // A negative one is beyond the last row.
  const std::size_t source = sources == nullptr ? token : static_cast<std::size_t>(sources[token]);
  std::uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::size_t column = static_cast<std::size_t>(blockIdx.x) * kChunk + panel_column(sixteenth * 8 + 2 * i);
    pairs[i] = bfloat_pair(value_of(from, source, column), value_of(from, source, column + 1));
  }
  const std::size_t panel = 2 * blockIdx.x + sixteenth / 8;
  to[(panel * capacity + token) * 8 + (sixteenth % 8 ^ token % 8)] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
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

std::uint32_t blocks(std::size_t count, std::size_t of = kThreads) {
  return static_cast<std::uint32_t>((count + of - 1) / of);
}

constexpr int kValues = 4;  // columns of a thread that quantizes: eight threads share a block of 32

__device__ __forceinline__ std::size_t thread_number() {
  return static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
}

/// One thread for kValues columns of the padded rows.
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const float* x, std::uint32_t rows, std::uint32_t cols, bool aligned, Int8Out out) {
  wait_for_previous();
  const std::uint32_t blocks = (cols + 31) / 32;
  const std::uint32_t row_threads = blocks * (32 / kValues);
  const std::size_t row = thread_number() / row_threads;
  const std::uint32_t column = static_cast<std::uint32_t>(thread_number() % row_threads) * kValues;
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

}  // namespace

void quantize(const float* x, std::size_t rows, std::size_t cols, Int8Out out, Stream& stream) {
  if (rows == 0 || cols == 0) return;
  const bool aligned = cols % 32 == 0 && reinterpret_cast<std::uintptr_t>(x) % 16 == 0;
  launch_overlapped("quantize", quantize_kernel, blocks(rows * (padded_cols(cols) / kValues)), kThreads, 0, stream, x,
                    static_cast<std::uint32_t>(rows), static_cast<std::uint32_t>(cols), aligned, out);
}

void pad_rows(const float* x, std::size_t rows, std::size_t cols, float* to, Stream& stream) {
  const std::size_t padded = padded_cols(cols);
  for_each(rows * padded, "pad_rows", stream, [=] __device__(std::size_t i) {
    const std::size_t row = i / padded, column = i % padded;
    to[i] = column < cols ? x[row * cols + column] : 0.0f;
  });
}

void floats_of_int8(const std::int8_t* q, const float2_pod* scales, std::size_t rows, std::size_t cols, float* to,
                    Stream& stream) {
  for_each(rows * padded_cols(cols), "floats_of_int8", stream,
           [=] __device__(std::size_t i) { to[i] = static_cast<float>(q[i]) * scales[i / 32].x; });
}

void finish_gated(const GatedArgs& args, Stream& stream) {
  const GatedArgs a = args;
  for_each(a.tokens * a.rows, "finish_gated", stream, [=] __device__(std::size_t i) {
    float& y = a.y[i / a.rows * a.y_stride + i % a.rows];
    const float value = activation_of(a.epilogue.activation, a.gate[i]) * a.up[i] * a.epilogue.scale;
    y = a.epilogue.accumulate ? y + value : value;
  });
}

void write_panels(const Activations& from, std::uint16_t* to, std::uint32_t capacity, std::uint32_t chunks,
                  CUstream_st* stream, const std::int32_t* sources) {
  const dim3 grid(chunks, blocks(capacity, kThreads / 16));
  panels_kernel<<<grid, kThreads, 0, stream>>>(from, sources, reinterpret_cast<uint4*>(to), capacity);
  imago::cuda::check_launch("activations in panels");
}

void write_rows(const Activations& from, Rounded type, std::uint16_t* to, std::size_t stride, CUstream_st* stream) {
  const dim3 grid(blocks(stride / 2, kThreads), static_cast<std::uint32_t>(from.count));
  std::uint32_t* const pairs = reinterpret_cast<std::uint32_t*>(to);
  if (type == Rounded::bfloat16) {
    rows_kernel<Rounded::bfloat16><<<grid, kThreads, 0, stream>>>(from, pairs, stride / 2);
  } else {
    rows_kernel<Rounded::float16><<<grid, kThreads, 0, stream>>>(from, pairs, stride / 2);
  }
  imago::cuda::check_launch("activations in 16 bits");
}

void write_floats(const Activations& from, float* to, CUstream_st* stream) {
  const Activations a = from;
  for_each(a.count * a.cols, "activations in float32", stream,
           [=] __device__(std::size_t i) { to[i] = value_of(a, i / a.cols, i % a.cols); });
}

void write_numbers(std::int32_t* to, std::uint32_t count, CUstream_st* stream) {
  for_each(count, "numbers", stream, [=] __device__(std::size_t i) { to[i] = static_cast<std::int32_t>(i); });
}

void finish(const FinishArgs& args, CUstream_st* stream) {
  finish_kernel<<<dim3(blocks(args.rows, kThreads), args.tokens), kThreads, 0, stream>>>(args);
  imago::cuda::check_launch("end of a product");
}

}  // namespace imago::kernels::cuda
