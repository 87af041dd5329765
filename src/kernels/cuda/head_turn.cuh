#pragma once

// One head of a query or a key on its way into attention, by a warp: its norm, its rotation, and for keys and values
// the row of the cache.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/cache_rows.cuh"
#include "kernels/cuda/reduce.cuh"

namespace imago::kernels::cuda {

/// The values of a head on their way into shared memory: lane l has l, l + 32, ….
template <int kMost>
struct FetchedHead {
  float x[kMost / 32];
  __device__ __forceinline__ void fetch(const float* from, unsigned values) {
#pragma unroll
    for (unsigned i = 0; i < kMost / 32; ++i) {
      const unsigned at = i * 32 + threadIdx.x % 32;
      x[i] = at < values ? from[at] : 0.0f;
    }
  }
  __device__ __forceinline__ void put(unsigned values, float* to) const {
#pragma unroll
    for (unsigned i = 0; i < kMost / 32; ++i) {
      const unsigned at = i * 32 + threadIdx.x % 32;
      if (at < values) to[at] = x[i];
    }
    __syncwarp();
  }
};

/// The two places of pair j in a head.
__device__ __forceinline__ uint2 pair_at(RopePairs pairs, unsigned half, unsigned j) {
  return pairs == RopePairs::halves ? uint2{j, j + half} : uint2{2 * j, 2 * j + 1};
}

/// Cosines and sines of a position: those of pair l, l + 32, … in lane l. Heads of up to kMost values.
template <int kMost>
struct FetchedTurn {
  float cos[kMost / 64], sin[kMost / 64];
  __device__ __forceinline__ void fetch(const HeadTurn& a, std::int32_t position) {
    const unsigned half = a.rope == nullptr ? 0 : a.rotary / 2;
    const float* const cosines = a.rope + static_cast<std::size_t>(position) * a.rotary;
#pragma unroll
    for (unsigned i = 0; i < kMost / 64; ++i) {
      const unsigned j = i * 32 + threadIdx.x % 32;
      cos[i] = j < half ? cosines[j] : 1.0f;
      sin[i] = j < half ? cosines[half + j] : 0.0f;
    }
  }
};

/// Values of the head through norm and rotation, in place in shared memory.
template <int kMost>
__device__ __forceinline__ void turn_head(const HeadTurn& a, unsigned values, const float* norm,
                                          const FetchedTurn<kMost>& turn, float* x) {
  const unsigned lane = threadIdx.x % 32, half = a.rope == nullptr ? 0 : a.rotary / 2;
  if (norm != nullptr) {
    float squares = 0;
    for (unsigned i = lane; i < values; i += 32) squares += x[i] * x[i];
    const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(values) + a.eps);
    for (unsigned i = lane; i < values; i += 32) x[i] = x[i] * factor * norm[i];
    __syncwarp();
  }
#pragma unroll
  for (unsigned i = 0; i < kMost / 64; ++i) {
    const unsigned j = i * 32 + lane;
    if (j >= half) continue;
    const uint2 at = pair_at(a.pairs, half, j);
    const float u = x[at.x], v = x[at.y];
    x[at.x] = u * turn.cos[i] - v * turn.sin[i];
    x[at.y] = u * turn.sin[i] + v * turn.cos[i];
  }
  __syncwarp();
}

/// From shared memory into the row of `position` in the plane of a head.
template <CacheType kType>
__device__ __forceinline__ void store_head(const CacheRows& rows, std::byte* plane, std::int32_t position,
                                           const float* x) {
  const unsigned lane = threadIdx.x % 32;
  std::byte* const row = plane + static_cast<std::size_t>(position) * rows.row_bytes;
  for (unsigned first = 0; first < rows.head_values; first += 32) {
    const bool inside = first + lane < rows.head_values;
    store_cache_values<kType>(row, first, inside ? x[first + lane] : 0.0f, inside);
  }
}

}  // namespace imago::kernels::cuda
