#pragma once

// Tiles of keys and values in shared memory, as float16, and the keys that the tokens of a tile of queries see.

#include <climits>
#include <cstdint>

#include "kernels/cuda/heads.cuh"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

/// Offset of a chunk of 16 bytes in rows of `dims` values. Chunks are swizzled by the row, so that the same chunk of 8
/// rows lies in different banks.
__device__ __forceinline__ std::uint32_t chunk_at(unsigned dims, unsigned row, unsigned chunk) {
  return row * dims * 2 + (chunk ^ row % 8) * 16;
}
template <int kDims>
__device__ __forceinline__ std::uint32_t chunk_at(unsigned row, unsigned chunk) {
  return chunk_at(kDims, row, chunk);
}

__device__ __forceinline__ float within_half(float v) { return fminf(fmaxf(v, -65504.0f), 65504.0f); }
__device__ __forceinline__ std::uint32_t safe_pair(float a, float b) {
  return half_pair(within_half(a), within_half(b));
}

/// Loads values 8 · chunk … + 7 of a row into shared memory, which is both `memory` and `address`; zeros if not
/// `inside`, where the row need not be its own.
template <CacheType kType>
__device__ __forceinline__ void load_chunk(std::byte* memory, std::uint32_t address, const std::byte* from,
                                           unsigned chunk, bool inside) {
  if constexpr (kType == CacheType::f16) {
    copy_16(address, from + (inside ? chunk * 16 : 0), inside);
  } else {
    uint4 pairs = {};
    if (inside && kType == CacheType::f32) {
      const auto* v = reinterpret_cast<const float4*>(from + chunk * 32);
      const float4 a = v[0], b = v[1];
      pairs = {safe_pair(a.x, a.y), safe_pair(a.z, a.w), safe_pair(b.x, b.y), safe_pair(b.z, b.w)};
    } else if (inside) {
      pairs = load_octet<CacheType::q8_0>(from, chunk * 8, true).pairs;
      const __half2 scale = __half2half2(*reinterpret_cast<const __half*>(from + chunk / 4 * kQ8Bytes));
      auto* halves = reinterpret_cast<__half2*>(&pairs);
#pragma unroll
      for (int k = 0; k < 4; ++k) halves[k] = __hmul2(halves[k], scale);
    }
    *reinterpret_cast<uint4*>(memory) = pairs;
  }
}

/// Consecutive tokens of a tile in one sequence, and the keys they see.
struct Segment {
  unsigned end;                        // one past its last token
  unsigned first_of_any, last_of_any;  // keys that some token sees
  unsigned first_of_all, last_of_all;  // keys that every token sees
  bool empty;
};
__device__ inline Segment find_segment(const int* firsts, const int* lasts, const int* sequences, unsigned begin,
                                       unsigned tokens) {
  const unsigned lane = threadIdx.x % 32;
  unsigned first = UINT_MAX, last_of_all = UINT_MAX, first_of_all = 0, end = begin;
  int last = -1;
  for (unsigned base = begin; base < tokens; base += 32) {
    const bool same = base + lane < tokens && sequences[base + lane] == sequences[begin];
    const unsigned others = ~__ballot_sync(~0u, same);
    const unsigned count = others == 0 ? 32 : __ffs(static_cast<int>(others)) - 1;
    if (lane < count && lasts[base + lane] >= 0) {
      const int own_last = lasts[base + lane];
      const unsigned key = static_cast<unsigned>(firsts[base + lane]);
      first = min(first, key), first_of_all = max(first_of_all, key);
      last = max(last, own_last), last_of_all = min(last_of_all, static_cast<unsigned>(own_last));
    }
    end = base + count;
    if (count < 32) break;
  }
  first = __reduce_min_sync(~0u, first), first_of_all = __reduce_max_sync(~0u, first_of_all);
  last = __reduce_max_sync(~0u, last), last_of_all = __reduce_min_sync(~0u, last_of_all);
  return {end, first, static_cast<unsigned>(last), first_of_all, last_of_all, last < 0};
}

}  // namespace imago::kernels::cuda
