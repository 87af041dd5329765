#pragma once

// Common code of small kernels: loops over elements and rows, sums over a block. Files that use it are compiled with
// --extended-lambda.

#include <algorithm>
#include <cstddef>

#include "device/cuda/check.h"
#include "device/cuda/stream.h"

namespace imago::kernels::cuda {

inline constexpr unsigned kThreads = 256;

template <class Body>
__global__ void __launch_bounds__(kThreads) for_each_kernel(std::size_t count, Body body) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * kThreads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) body(i);
}

/// body(i) for each i below `count`.
template <class Body>
void for_each(std::size_t count, const char* name, CUstream_st* stream, const Body& body) {
  if (count == 0) return;
  const std::size_t blocks = std::min<std::size_t>((count + kThreads - 1) / kThreads, 1u << 20);
  for_each_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(count, body);
  imago::cuda::check_launch(name);
}
template <class Body>
void for_each(std::size_t count, const char* name, imago::cuda::Stream& stream, const Body& body) {
  for_each(count, name, stream.handle(), body);
}

template <class Body>
__global__ void __launch_bounds__(kThreads) for_each_row_kernel(std::size_t rows, Body body) {
  for (std::size_t row = blockIdx.x; row < rows; row += gridDim.x) body(row);
}

/// body(row) on a block of kThreads threads for each row; the body may use block_sum.
template <class Body>
void for_each_row(std::size_t rows, const char* name, imago::cuda::Stream& stream, const Body& body) {
  if (rows == 0) return;
  const unsigned blocks = static_cast<unsigned>(std::min<std::size_t>(rows, 1u << 20));
  for_each_row_kernel<<<blocks, kThreads, 0, stream.handle()>>>(rows, body);
  imago::cuda::check_launch(name);
}

/// The sum over the block, in every thread, always in the same order. All threads of the block must call it.
template <class T>
__device__ T block_sum(T value) {
  __shared__ T parts[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  __syncthreads();  // all threads have read the result of the previous call
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  T sum = parts[0];
  for (unsigned i = 1; i < kThreads / 32; ++i) sum += parts[i];
  return sum;
}

/// Σ value(i), i < count, over the threads of the block.
template <class T, class Value>
__device__ T block_sum_of(std::size_t count, const Value& value) {
  T sum = 0;
  for (std::size_t i = threadIdx.x; i < count; i += kThreads) sum += static_cast<T>(value(i));
  return block_sum(sum);
}

}  // namespace imago::kernels::cuda
