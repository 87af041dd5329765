#pragma once

// Sums and maxima over the lanes of a warp and the threads of a block.

namespace imago::kernels::cuda {

template <class T>
__device__ inline T warp_sum(T value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

__device__ inline float warp_max(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  return value;
}

/// `combine` over the threads of x in a block: over a warp where they are 32, whatever threads of y there are beside
/// them; else over the block, which then has one y. All of them get the result. `room` has 33 places in shared memory.
template <class T, class Combine>
__device__ inline T team_reduce(T value, T nothing, T* room, Combine combine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(~0u, value, step));
  if (blockDim.x == 32) return value;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  __syncthreads();  // what an earlier reduction left in `room` has been read
  if (lane == 0) room[warp] = value;
  __syncthreads();
  value = lane < warps ? room[lane] : nothing;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(~0u, value, step));
  return value;
}

__device__ inline float team_sum(float value, float* room) {
  return team_reduce(value, 0.0f, room, [](float a, float b) { return a + b; });
}

__device__ inline float team_max(float value, float* room) {
  return team_reduce(value, -__int_as_float(0x7F800000), room, [](float a, float b) { return fmaxf(a, b); });
}

}  // namespace imago::kernels::cuda
