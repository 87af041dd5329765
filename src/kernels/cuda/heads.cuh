#pragma once

// Heads of queries, keys and values, and the rows of a cache: how values are stored in float32, float16 or q8_0, how a
// warp loads eight of them for tensor cores, and what happens to a head on its way into attention (norm, rotation).
//
// Tensor cores sum over the values of a head in any order, and a column of a product may stand for any value. So a lane
// loads 16 consecutive bytes straight from device memory into registers, and their index in the tile follows from that.

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/scalar_ops.h"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

// ---- rows of a cache

inline constexpr unsigned kQ8Bytes = 34;  ///< a block of q8_0: a float16 and 32 codes

/// Stores up to 32 values of a row from `first` on, one a lane, with the bytes that kernels::append_to_cache writes.
/// All lanes of the warp call it; `inside`: the lane has a value.
template <CacheType kType>
__device__ inline void store_cache_values(std::byte* row, unsigned first, float value, bool inside) {
  const unsigned lane = threadIdx.x % 32;
  if constexpr (kType == CacheType::f32) {
    if (inside) reinterpret_cast<float*>(row)[first + lane] = value;
  } else if constexpr (kType == CacheType::f16) {
    if (inside) reinterpret_cast<std::uint16_t*>(row)[first + lane] = half_of_float(value);
  } else {
    const float finite = q8_0_finite(value);
    std::uint32_t largest = magnitude_bits(finite);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, step));
    const BlockScale block = q8_0_scale(largest);
    std::byte* const to = row + first / 32 * kQ8Bytes;
    reinterpret_cast<std::int8_t*>(to)[2 + lane] = static_cast<std::int8_t>(q8_0_code(finite, block));
    if (lane == 0) *reinterpret_cast<std::uint16_t*>(to) = half_of_float(fminf(block.scale, 65504.0f));
  }
}

/// Four 8-bit codes as float16, exactly: 0x6400 is 1024 as float16, where one ulp is 1.
__device__ __forceinline__ uint2 halves_of_codes(std::uint32_t codes) {
  const std::uint32_t biased = codes ^ 0x80808080u;
  const __half2 offset = __half2half2(__ushort_as_half(0x6480));  // 1152
  std::uint32_t low = __byte_perm(biased, 0x64646464u, 0x4140), high = __byte_perm(biased, 0x64646464u, 0x4342);
  const __half2 a = __hsub2(*reinterpret_cast<__half2*>(&low), offset);
  const __half2 b = __hsub2(*reinterpret_cast<__half2*>(&high), offset);
  return {*reinterpret_cast<const std::uint32_t*>(&a), *reinterpret_cast<const std::uint32_t*>(&b)};
}

/// Two values rounded to float16, and what rounding left of them.
struct Split {
  std::uint32_t high, low;
};
__device__ __forceinline__ Split split_halves(float x, float y) {
  Split s;
  s.high = half_pair(x, y);
  const float2 rounded = __half22float2(*reinterpret_cast<__half2*>(&s.high));
  s.low = half_pair(x - rounded.x, y - rounded.y);
  return s;
}

__device__ __forceinline__ std::uint32_t bytes_4(const std::byte* from) {  // from any even address
  const auto* halves = reinterpret_cast<const std::uint16_t*>(from);
  return halves[0] | static_cast<std::uint32_t>(halves[1]) << 16;
}

/// Values first … first + 7 of a row (a multiple of 8; zeros if not `inside`) as float16 pairs. q8_0: codes, without
/// their scale. f32: `rest` has what rounding left.
template <CacheType kType>
struct Octet {
  uint4 pairs;
};
template <>
struct Octet<CacheType::f32> {
  uint4 pairs, rest;
};

template <CacheType kType>
__device__ __forceinline__ Octet<kType> load_octet(const std::byte* row, unsigned first, bool inside) {
  Octet<kType> o = {};
  if (!inside) return o;
  if constexpr (kType == CacheType::f16) {
    o.pairs = *reinterpret_cast<const uint4*>(row + 2 * first);
  } else if constexpr (kType == CacheType::f32) {
    const auto* from = reinterpret_cast<const float4*>(row + 4 * first);
    const float4 a = from[0], b = from[1];
    const Split s0 = split_halves(a.x, a.y), s1 = split_halves(a.z, a.w);
    const Split s2 = split_halves(b.x, b.y), s3 = split_halves(b.z, b.w);
    o.pairs = {s0.high, s1.high, s2.high, s3.high};
    o.rest = {s0.low, s1.low, s2.low, s3.low};
  } else {
    const std::byte* const codes = row + first / 32 * kQ8Bytes + 2 + first % 32;
    const uint2 a = halves_of_codes(bytes_4(codes)), b = halves_of_codes(bytes_4(codes + 4));
    o.pairs = {a.x, a.y, b.x, b.y};
  }
  return o;
}

/// Eight values as float16; zeros if not `inside`.
__device__ __forceinline__ uint4 halves_of(const float* x, bool inside) {
  if (!inside) return {0, 0, 0, 0};
  const auto pair = [&](int i) { return half_of_float(x[i]) | std::uint32_t{half_of_float(x[i + 1])} << 16; };
  return {pair(0), pair(2), pair(4), pair(6)};
}

__device__ __forceinline__ float q8_scale(const std::byte* row, unsigned block, bool inside) {
  return inside ? float_of_half(*reinterpret_cast<const std::uint16_t*>(row + block * kQ8Bytes)) : 0.0f;
}

// ---- norm and rotation of a head, by a warp

/// The values of a head on their way into shared memory: lane l has values l, l + 32, ….
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

/// The two values of a head that pair j rotates.
__device__ __forceinline__ uint2 pair_at(RopePairs pairs, unsigned half, unsigned j) {
  return pairs == RopePairs::halves ? uint2{j, j + half} : uint2{2 * j, 2 * j + 1};
}

/// Cosines and sines of a position: those of pair l, l + 32, … in lane l. Heads of up to kMost values.
template <int kMost>
struct FetchedRotation {
  float cos[kMost / 64], sin[kMost / 64];
  __device__ __forceinline__ void fetch(const HeadRotation& a, std::int32_t position) {
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

/// The norm of a head in shared memory, in place. `weight` may be null: ones.
__device__ __forceinline__ void norm_head(unsigned values, const float* weight, float eps, float* x) {
  const unsigned lane = threadIdx.x % 32;
  float squares = 0;
  for (unsigned i = lane; i < values; i += 32) squares += x[i] * x[i];
  const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(values) + eps);
  for (unsigned i = lane; i < values; i += 32) x[i] = x[i] * factor * (weight == nullptr ? 1.0f : weight[i]);
  __syncwarp();
}

enum class HeadKind { query, key, value };

/// Applies norm and rotation, and to queries their growth, to a head in shared memory, in place.
template <int kMost>
__device__ __forceinline__ void rotate_head(const HeadRotation& a, unsigned values, HeadKind kind,
                                            std::int32_t position, const FetchedRotation<kMost>& rotation, float* x) {
  if (kind == HeadKind::value) {
    if (a.norms_values) norm_head(values, nullptr, a.eps, x);
    return;
  }
  const unsigned lane = threadIdx.x % 32, half = a.rope == nullptr ? 0 : a.rotary / 2;
  const float* const norm = kind == HeadKind::query ? a.q_norm : a.k_norm;
  if (norm != nullptr && !a.norms_turned) norm_head(values, norm, a.eps, x);
#pragma unroll
  for (unsigned i = 0; i < kMost / 64; ++i) {
    const unsigned j = i * 32 + lane;
    if (j >= half) continue;
    const uint2 at = pair_at(a.pairs, half, j);
    const float u = x[at.x], v = x[at.y];
    x[at.x] = u * rotation.cos[i] - v * rotation.sin[i];
    x[at.y] = u * rotation.sin[i] + v * rotation.cos[i];
  }
  __syncwarp();
  if (norm != nullptr && a.norms_turned) norm_head(values, norm, a.eps, x);
  if (kind == HeadKind::query && a.growth != 0) {
    const float periods = static_cast<float>(static_cast<std::uint32_t>(position) / a.growth_period);
    const float factor = 1.0f + a.growth * log1pf(periods);
    for (unsigned i = lane; i < values; i += 32) x[i] *= factor;
    __syncwarp();
  }
}

/// Stores a head from shared memory as row `position` of its cache.
template <CacheType kType, bool kPaged>
__device__ __forceinline__ void store_head(const CacheRows& rows, std::byte* plane, const std::uint32_t* pages,
                                           std::int32_t position, const float* x) {
  const unsigned lane = threadIdx.x % 32, place = static_cast<unsigned>(position);
  std::byte* const row = plane + PageWindow<kPaged>(rows, pages, place, place).offset(place);
  for (unsigned first = 0; first < rows.head_values; first += 32) {
    const bool inside = first + lane < rows.head_values;
    store_cache_values<kType>(row, first, inside ? x[first + lane] : 0.0f, inside);
  }
}

/// The heads that a block of decoding attention prepares: rotated queries go into shared memory; the block with the
/// last key stores the token's key and value in the cache, where no other block reads them.
template <int kSupers, CacheType kType, bool kPaged>
class PlacedHeads {
 public:
  __device__ __forceinline__ PlacedHeads(const DecodeWork& a, std::size_t queries, std::size_t key, unsigned rows)
      : a_(a), queries_(a.q + queries), key_(key), rows_(rows) {}

  /// Does not depend on the previous kernel.
  __device__ __forceinline__ void fetch_rotation(std::int32_t position) { rotation_.fetch(a_.rotation, position); }

  /// All threads of the block.
  __device__ __forceinline__ void place(const GpuCache& cache, unsigned kv_head, std::int32_t position, bool has_last,
                                        float* shared) {
    const unsigned values = a_.rows.head_values;
    const unsigned jobs = rows_ + (has_last ? 2 : 0);
    FetchedHead<64 * kSupers> heads[2];
    for (unsigned job = warp(); job < jobs; job += 2 * kDecodeWarps) {
      heads[0].fetch(source(job), values);
      if (job + kDecodeWarps < jobs) heads[1].fetch(source(job + kDecodeWarps), values);
      finish(heads[0], job, cache, kv_head, position, shared);
      if (job + kDecodeWarps < jobs) finish(heads[1], job + kDecodeWarps, cache, kv_head, position, shared);
    }
    __syncthreads();
  }
  /// Key and value follow the queries in `shared`.
  __device__ __forceinline__ const float* key(const float* shared) const {
    return shared + rows_ * a_.rows.head_values;
  }
  __device__ __forceinline__ const float* value(const float* shared) const { return key(shared) + a_.rows.head_values; }

 private:
  __device__ __forceinline__ void finish(const FetchedHead<64 * kSupers>& head, unsigned job, const GpuCache& cache,
                                         unsigned kv_head, std::int32_t position, float* shared) {
    const unsigned values = a_.rows.head_values;
    float* const x = shared + job * values;
    head.put(values, x);
    const bool is_query = job < rows_, is_key = job == rows_;
    rotate_head(a_.rotation, values,
                is_query ? HeadKind::query
                : is_key ? HeadKind::key
                         : HeadKind::value,
                position, rotation_, x);
    if (is_query) return;
    std::byte* const plane = (is_key ? cache.keys : cache.values) + kv_head * a_.rows.head_bytes;
    store_head<kType, kPaged>(a_.rows, plane, cache.pages, position, x);
  }
  static __device__ __forceinline__ unsigned warp() { return threadIdx.x / 32; }
  __device__ __forceinline__ const float* source(unsigned job) const {
    return job < rows_ ? queries_ + job * a_.rows.head_values : (job == rows_ ? a_.k : a_.v) + key_;
  }

  const DecodeWork& a_;
  const float* queries_;
  std::size_t key_;
  unsigned rows_;
  FetchedRotation<64 * kSupers> rotation_;
};

}  // namespace imago::kernels::cuda
