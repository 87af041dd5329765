#pragma once

// Attention of single tokens: a block takes up to 8 heads of queries that share keys, and a part of these keys; its
// warps take 16 keys in turn. Keys and values go from memory into registers in the form the tensor cores want, so
// nothing is staged and all loads of a turn are under way at once.
//
// A tile has 16 rows of queries and decoding needs 8 at most, so rows 8 to 15 hold what float16 rounding left of rows 0
// to 7: the sum of both halves of the product is exact to 22 bits, for the same price. Weights are split likewise.

#include <cooperative_groups.h>

#include <cstdint>

#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/cache_tiles.cuh"
#include "kernels/cuda/head_turn.cuh"
#include "kernels/cuda/int8_form.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace imago::kernels::cuda {

/// Weights are sums of 2^(score - largest + boost): float16 keeps them down to 2^-24, and they count down to 2^-36.
/// With q8_0 they are multiplied by scales up to 255 before.
template <CacheType kType>
inline constexpr float kWeightBoost = kType == CacheType::q8_0 ? 8.0f : 12.0f;

/// One warp's queries, and what it has summed up. Lane = 4 · g + c.
template <int kSupers, CacheType kType>
struct DecodeState {
  static constexpr int kSteps = 2 * kSupers;  // of 32 values
  std::uint32_t q[kSteps][2][4];
  float factor;  // on products of q: undoes its own scaling
  float largest = -INFINITY, total = 0;
  float sums[kSupers * 8][4] = {};
};

/// Values i · 32 + 8c … + 7 of the query of row g, zeros where there is none.
template <int kSteps>
__device__ __forceinline__ void load_query(float (&v)[kSteps][8], const float* q, bool inside, unsigned values,
                                           unsigned c) {
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const unsigned first = i * 32 + c * 8;
#pragma unroll
    for (int k = 0; k < 8; k += 4) {
      const float4 four =
          inside && first < values ? *reinterpret_cast<const float4*>(q + first + k) : float4{0, 0, 0, 0};
      v[i][k] = four.x, v[i][k + 1] = four.y, v[i][k + 2] = four.z, v[i][k + 3] = four.w;
    }
  }
}

template <int kSupers, CacheType kType>
__device__ __forceinline__ void set_query(DecodeState<kSupers, kType>& state, const float (&v)[2 * kSupers][8],
                                          float scale) {
  constexpr int kSteps = 2 * kSupers;
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
#pragma unroll
    for (int k = 0; k < 8; ++k) largest = max(largest, magnitude_bits(v[i][k]));
  }
  largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
  // A power of two brings the largest value near 1: float16 then neither overflows nor loses what matters.
  const std::uint32_t exponent = min(max(largest >> 23, 1u), 253u);
  const float down = float_of_bits((254u - exponent) << 23);
  state.factor = float_of_bits(exponent << 23) * scale;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const Split s = split_halves(v[i][2 * k] * down, v[i][2 * k + 1] * down);
      state.q[i][k / 2][k % 2 * 2] = s.high;
      state.q[i][k / 2][k % 2 * 2 + 1] = s.low;
    }
  }
}

template <int kSupers, CacheType kType>
__device__ __forceinline__ void load_key(Octet<kType> (&octets)[2 * kSupers], const std::byte* row, bool inside,
                                         unsigned values, unsigned c) {
#pragma unroll
  for (int i = 0; i < 2 * kSupers; ++i) {
    octets[i] = load_octet<kType>(row, i * 32 + c * 8, inside && i * 32 + c * 8 < values);
  }
}

/// Scores of the keys 2c and 2c + 1 of 8, before scale and cap; `octets`, `row` and `inside` are those of key g.
template <int kSupers, CacheType kType>
__device__ __forceinline__ float2 score_keys(const DecodeState<kSupers, kType>& state,
                                             const Octet<kType> (&octets)[2 * kSupers], const std::byte* row,
                                             bool inside, unsigned values, unsigned c) {
  constexpr int kSteps = 2 * kSupers;
  if constexpr (kType == CacheType::q8_0) {
    float scales[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) scales[i] = q8_scale(row, i, inside && i * 32u < values);
    float2 score = {0, 0};
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      float d[4] = {};
      multiply_add(d, state.q[i][0], octets[i].pairs.x, octets[i].pairs.y);
      multiply_add(d, state.q[i][1], octets[i].pairs.z, octets[i].pairs.w);
      score.x += (d[0] + d[2]) * __shfl_sync(~0u, scales[i], 8 * c);
      score.y += (d[1] + d[3]) * __shfl_sync(~0u, scales[i], 8 * c + 4);
    }
    return score;
  } else {
    float d[2][4] = {};  // two sums: each product waits for the one before in its sum
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      multiply_add(d[0], state.q[i][0], octets[i].pairs.x, octets[i].pairs.y);
      multiply_add(d[1], state.q[i][1], octets[i].pairs.z, octets[i].pairs.w);
      if constexpr (kType == CacheType::f32) {
        multiply_add(d[0], state.q[i][0], octets[i].rest.x, octets[i].rest.y);
        multiply_add(d[1], state.q[i][1], octets[i].rest.z, octets[i].rest.w);
      }
    }
    return {(d[0][0] + d[0][2]) + (d[1][0] + d[1][2]), (d[0][1] + d[0][3]) + (d[1][1] + d[1][3])};
  }
}

/// Adds weights · values for 64 values of 16 keys: two neighbouring keys make the pairs that a column wants.
__device__ __forceinline__ void add_pairs(float (*sums)[4], const std::uint32_t (&weights)[4], const uint4& k0,
                                          const uint4& k1, const uint4& k8, const uint4& k9) {
  const std::uint32_t w0[4] = {k0.x, k0.y, k0.z, k0.w}, w1[4] = {k1.x, k1.y, k1.z, k1.w};
  const std::uint32_t w8[4] = {k8.x, k8.y, k8.z, k8.w}, w9[4] = {k9.x, k9.y, k9.z, k9.w};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    multiply_add(sums[2 * w], weights, __byte_perm(w0[w], w1[w], 0x5410), __byte_perm(w8[w], w9[w], 0x5410));
    multiply_add(sums[2 * w + 1], weights, __byte_perm(w0[w], w1[w], 0x7632), __byte_perm(w8[w], w9[w], 0x7632));
  }
}

/// The rows of the four keys whose values a lane holds, and whether they are there.
struct ValueRows {
  const std::byte* row[4];
  bool inside[4];
  __device__ __forceinline__ ValueRows(const std::byte* values, unsigned row_bytes, unsigned key, unsigned stop,
                                       unsigned c) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const unsigned at = key + 2 * c + k % 2 + k / 2 * 8;
      inside[k] = at < stop;
      row[k] = values + std::size_t{at} * row_bytes;
    }
  }
};

template <int kSupers, CacheType kType>
struct LoadedValues {
  Octet<kType> octets[kSupers][4];
  __device__ __forceinline__ void load(const ValueRows& rows, unsigned values, unsigned g) {
#pragma unroll
    for (int s = 0; s < kSupers; ++s) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const unsigned first = s * 64 + g * 8;
        octets[s][k] = load_octet<kType>(rows.row[k], first, rows.inside[k] && first < values);
      }
    }
  }
  __device__ __forceinline__ void add_to(float (*sums)[4], const std::uint32_t (&weights)[4]) const {
#pragma unroll
    for (int s = 0; s < kSupers; ++s) {
      const auto& o = octets[s];
      add_pairs(sums + 8 * s, weights, o[0].pairs, o[1].pairs, o[2].pairs, o[3].pairs);
      if constexpr (kType == CacheType::f32)
        add_pairs(sums + 8 * s, weights, o[0].rest, o[1].rest, o[2].rest, o[3].rest);
    }
  }
};

/// q8_0: blocks of 32 values, four a lane, since their scale goes into the weights.
template <int kSupers>
__device__ __forceinline__ void add_scaled_values(float (*sums)[4], const float (&p)[4], const ValueRows& rows,
                                                  unsigned values, unsigned g) {
  uint2 codes[2 * kSupers][4];
  float scales[2 * kSupers][4];
#pragma unroll
  for (int b = 0; b < 2 * kSupers; ++b) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const bool there = rows.inside[k] && b * 32u < values;
      scales[b][k] = q8_scale(rows.row[k], b, there);
      codes[b][k].x = there ? bytes_4(rows.row[k] + b * kQ8Bytes + 2 + g * 4) : 0u;
    }
  }
#pragma unroll
  for (int b = 0; b < 2 * kSupers; ++b) {
    const Split near = split_halves(p[0] * scales[b][0], p[1] * scales[b][1]);
    const Split far = split_halves(p[2] * scales[b][2], p[3] * scales[b][3]);
    const std::uint32_t weights[4] = {near.high, near.low, far.high, far.low};
    uint2 v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = halves_of_codes(codes[b][k].x);
    float(*to)[4] = sums + 4 * b;
    multiply_add(to[0], weights, __byte_perm(v[0].x, v[1].x, 0x5410), __byte_perm(v[2].x, v[3].x, 0x5410));
    multiply_add(to[1], weights, __byte_perm(v[0].x, v[1].x, 0x7632), __byte_perm(v[2].x, v[3].x, 0x7632));
    multiply_add(to[2], weights, __byte_perm(v[0].y, v[1].y, 0x5410), __byte_perm(v[2].y, v[3].y, 0x5410));
    multiply_add(to[3], weights, __byte_perm(v[0].y, v[1].y, 0x7632), __byte_perm(v[2].y, v[3].y, 0x7632));
  }
}

/// Which value of the head column 2c + odd of sum number `tile` is.
template <CacheType kType>
__device__ __forceinline__ unsigned value_of_sum(unsigned tile, unsigned c, unsigned odd) {
  if constexpr (kType == CacheType::q8_0) return tile / 4 * 32 + (2 * c + odd) * 4 + tile % 4;
  return tile / 8 * 64 + (2 * c + odd) * 8 + tile % 8;
}

/// Registers hold keys and values of 16 keys besides all else up to heads of 128: the next keys are then under way
/// while these values are added.
template <int kSupers, CacheType kType>
inline constexpr bool kLoadsAhead = kSupers <= 2 && kType == CacheType::f16;

/// The keys [key, stop) of which there may be more than 16. kLoadsAhead: `octets` has them, and gets those from `next`
/// on.
template <int kSupers, CacheType kType>
__device__ __forceinline__ void look_at_keys(const DecodeWork& a, DecodeState<kSupers, kType>& state,
                                             Octet<kType> (&octets)[2][2 * kSupers],
                                             LoadedValues<kSupers, kType>& loaded, const std::byte* keys,
                                             const std::byte* values, unsigned key, unsigned next, unsigned stop,
                                             unsigned g, unsigned c) {
  const unsigned row_bytes = a.rows.row_bytes, head_values = a.rows.head_values;
  const ValueRows rows(values, row_bytes, key, stop, c);
  constexpr bool kEarly = kLoadsAhead<kSupers, kType>;

  float s[4];
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    const unsigned at = key + 8 * t + g;
    const std::byte* const row = keys + std::size_t{at} * row_bytes;
    if constexpr (!kEarly) load_key<kSupers, kType>(octets[t], row, at < stop, head_values, c);
    const float2 pair = score_keys<kSupers, kType>(state, octets[t], row, at < stop, head_values, c);
    s[2 * t] = pair.x * state.factor, s[2 * t + 1] = pair.y * state.factor;
    if constexpr (kEarly) {
      const unsigned then = next + 8 * t + g;
      load_key<kSupers, kType>(octets[t], keys + std::size_t{then} * row_bytes, then < stop, head_values, c);
    }
  }
  float top = -INFINITY;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (a.cap > 0) s[k] = a.cap * quick_tanh(s[k] / a.cap);
    s[k] = rows.inside[k] ? s[k] * 1.4426950409f : -INFINITY;  // as powers of 2
    top = fmaxf(top, s[k]);
  }
  top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
  top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
  const float largest = fmaxf(state.largest, top);  // finite: key < stop
  if (__any_sync(~0u, largest > state.largest)) {
    const float shrink = power_of_2(state.largest - largest);
    state.total *= shrink;
#pragma unroll
    for (int i = 0; i < kSupers * 8; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) state.sums[i][k] *= shrink;
    }
    state.largest = largest;
  }
  float p[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    p[k] = power_of_2(s[k] - (largest - kWeightBoost<kType>));
    state.total += p[k];
  }
  if constexpr (kType == CacheType::q8_0) {
    add_scaled_values<kSupers>(state.sums, p, rows, head_values, g);
  } else {
    if constexpr (!kEarly) loaded.load(rows, head_values, g);
    const Split near = split_halves(p[0], p[1]), far = split_halves(p[2], p[3]);
    const std::uint32_t weights[4] = {near.high, near.low, far.high, far.low};
    loaded.add_to(state.sums, weights);
    if constexpr (kEarly) loaded.load(ValueRows(values, row_bytes, next, stop, c), head_values, g);
  }
}

/// What a warp found for its row: the largest score and the total weight of `parts` parts become one, and each part its
/// factor.
template <class Numbers>
__device__ __forceinline__ float2 weigh_parts(unsigned parts, Numbers numbers_of, float* factors) {
  const unsigned lane = threadIdx.x % 32;
  const float2 own = lane < parts ? numbers_of(lane) : float2{-INFINITY, 0};  // mostly there are no more
  float largest = own.x, total = 0;
  for (unsigned k = lane + 32; k < parts; k += 32) largest = fmaxf(largest, numbers_of(k).x);
  largest = warp_max(largest);
  for (unsigned k = lane; k < parts; k += 32) {
    const float2 numbers = k == lane ? own : numbers_of(k);
    const float factor = power_of_2(numbers.x - largest);
    factors[k] = factor;
    total += factor * numbers.y;
  }
  return {largest, warp_sum(total)};
}

/// finish(i, inside, row, Σ factors · sums) for each value i of the rows, in groups of 32 that the warps take in turn:
/// this one `first`, then every `step`. All lanes of a warp call `finish` together.
template <class Sums, class Finish>
__device__ __forceinline__ void add_parts(unsigned first, unsigned step, unsigned parts, unsigned count,
                                          unsigned head_values, const float (*factors)[kDecodeBlocks], Sums sums_of,
                                          Finish finish) {
  for (unsigned i = first * 32 + threadIdx.x % 32; i < (count + 31) / 32 * 32; i += step * 32) {
    const bool inside = i < count;
    const unsigned row = inside ? i / head_values : 0;
    float sum = 0;
#pragma unroll 4
    for (unsigned k = 0; k < parts; ++k) sum += factors[row][k] * (inside ? sums_of(k, i) : 0.0f);
    finish(i, inside, row, sum);
  }
}

/// The heads that a block puts in place: its queries into shared memory, turned; the token's key and value into the
/// cache, by the block that has its last key. Nobody else reads them there.
template <int kSupers, CacheType kType>
class PlacedHeads {
 public:
  __device__ __forceinline__ PlacedHeads(const DecodeWork& a, std::size_t queries, std::size_t key, unsigned rows)
      : a_(a), queries_(a.q + queries), key_(key), rows_(rows) {}

  /// What no kernel of this step makes.
  __device__ __forceinline__ void fetch_turn(std::int32_t position) { turn_.fetch(a_.turn, position); }

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
  /// Of `shared`, behind the queries.
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
    if (is_query || is_key) turn_head(a_.turn, values, is_query ? a_.turn.q_norm : a_.turn.k_norm, turn_, x);
    if (is_query) return;
    store_head<kType>(a_.rows, (is_key ? cache.keys : cache.values) + kv_head * a_.rows.head_bytes, position, x);
  }
  static __device__ __forceinline__ unsigned warp() { return threadIdx.x / 32; }
  __device__ __forceinline__ const float* source(unsigned job) const {
    return job < rows_ ? queries_ + job * a_.rows.head_values : (job == rows_ ? a_.k : a_.v) + key_;
  }

  const DecodeWork& a_;
  const float* queries_;
  std::size_t key_;
  unsigned rows_;
  FetchedTurn<64 * kSupers> turn_;
};

/// Grid: splits × units; a cluster for each unit if a.is_cluster. Block: kDecodeWarps warps. Shared:
/// [warps][rows][head_values] sums.
template <int kSupers, CacheType kType>
__global__ void __launch_bounds__(32 * kDecodeWarps, 1) decode_attention(DecodeWork a) {
  static_assert(kDecodeWarps == kDecodeHeads, "each warp weighs the parts of one row");
  extern __shared__ float shared[];
  __shared__ float2 numbers[kDecodeWarps][kDecodeHeads], row_numbers[kDecodeHeads], all_numbers[kDecodeHeads];
  __shared__ float factors[kDecodeHeads][kDecodeBlocks];
  __shared__ bool is_last;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const unsigned unit = blockIdx.y, token = unit / (a.kv_heads * a.chunks);
  const unsigned kv_head = unit / a.chunks % a.kv_heads, chunk = unit % a.chunks;
  const unsigned head_values = a.rows.head_values, rows = min(a.group - chunk * 8, 8u);
  const unsigned count = rows * head_values, part_floats = rows * (head_values + 2);
  const std::size_t out = (std::size_t{token} * a.heads + kv_head * a.group + chunk * 8) * head_values;
  const std::int32_t position = a.position[token];
  const GpuCache cache = a.caches[a.sequence == nullptr ? 0 : a.sequence[token]];
  const unsigned first = first_key(position, a.window), end = static_cast<unsigned>(position) + 1;
  const unsigned per_split = keys_per_split(end - first, gridDim.x);
  const unsigned splits = (end - first + per_split - 1) / per_split;
  const bool has_keys = blockIdx.x < splits;
  const unsigned begin = first + blockIdx.x * per_split, stop = min(begin + per_split, end);
  const std::byte* const keys = cache.keys + kv_head * a.rows.head_bytes;
  const std::byte* const values = cache.values + kv_head * a.rows.head_bytes;
  const std::size_t own_key = (std::size_t{token} * a.kv_heads + kv_head) * head_values;
  PlacedHeads<kSupers, kType> heads(a, out, own_key, rows);
  constexpr bool kEarly = kLoadsAhead<kSupers, kType>;
  Octet<kType> octets[2][2 * kSupers];
  LoadedValues<kSupers, kType> loaded;
  const bool places = a.k != nullptr && position >= 0 && has_keys;
  const auto load_first = [&](unsigned limit) {
    const unsigned key = begin + warp * 16;
#pragma unroll
    for (unsigned t = 0; t < 2; ++t) {
      const unsigned at = key + 8 * t + g;
      load_key<kSupers, kType>(octets[t], keys + std::size_t{at} * a.rows.row_bytes, at < limit, head_values, c);
    }
    loaded.load(ValueRows(values, a.rows.row_bytes, key, limit, c), head_values, g);
  };
  if (places) {
    heads.fetch_turn(position);
    if constexpr (kEarly) load_first(min(stop, end - 1));  // the last one is not there yet
  }
  wait_for_previous();
  if (position < 0 || (!has_keys && !(a.is_cluster && splits > 1))) return;  // a cluster combines together
  float query[2 * kSupers][8];
  if (places) {
    heads.place(cache, kv_head, position, stop == end, shared);
    load_query<2 * kSupers>(query, shared + g * head_values, g < rows, head_values, c);
    if constexpr (kEarly) {
#pragma unroll
      for (unsigned t = 0; t < 2; ++t) {
        if (begin + warp * 16 + 8 * t + g + 1 != end) continue;
#pragma unroll
        for (unsigned i = 0; i < 2 * kSupers; ++i) {
          octets[t][i].pairs = halves_of(heads.key(shared) + i * 32 + c * 8, i * 32 + c * 8 < head_values);
        }
      }
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) {
        if (begin + warp * 16 + 2 * c + k % 2 + k / 2 * 8 + 1 != end) continue;
#pragma unroll
        for (unsigned i = 0; i < kSupers; ++i) {
          loaded.octets[i][k].pairs = halves_of(heads.value(shared) + i * 64 + g * 8, i * 64 + g * 8 < head_values);
        }
      }
    }
    __syncthreads();  // sums will lie there
  } else if (has_keys) {
    load_query<2 * kSupers>(query, a.q + out + g * head_values, g < rows, head_values, c);
    if constexpr (kEarly) load_first(stop);
  }

  if (has_keys && begin + warp * 16 < stop) {
    DecodeState<kSupers, kType> state;
    set_query<kSupers, kType>(state, query, a.scale);
    for (unsigned key = begin + warp * 16; key < stop; key += kDecodeKeys) {
      look_at_keys<kSupers, kType>(a, state, octets, loaded, keys, values, key, key + kDecodeKeys, stop, g, c);
    }
    state.total += __shfl_xor_sync(~0u, state.total, 1);
    state.total += __shfl_xor_sync(~0u, state.total, 2);
    if (g < rows) {
      float* const sums = shared + (warp * rows + g) * head_values;
#pragma unroll
      for (int i = 0; i < kSupers * 8; ++i) {
#pragma unroll
        for (unsigned odd = 0; odd < 2; ++odd) {
          const unsigned value = value_of_sum<kType>(i, c, odd);
          if (value < head_values) sums[value] = state.sums[i][odd] + state.sums[i][odd + 2];
        }
      }
      if (c == 0) numbers[warp][g] = {state.largest, state.total};
    }
  }
  const unsigned warps = min((stop - begin + 15) / 16, static_cast<unsigned>(kDecodeWarps));  // that had keys
  const auto warp_sums = [&](unsigned k, unsigned i) { return shared[k * count + i]; };
  if (has_keys) {
    __syncthreads();
    if (warp < rows) {
      const float2 mine = weigh_parts(
          warps, [&](unsigned k) { return numbers[k][warp]; }, factors[warp]);
      if (lane == 0) row_numbers[warp] = mine;
    }
    __syncthreads();
  }

  const float2* totals = splits == 1 ? row_numbers : all_numbers;
  const auto store = [&](unsigned i, bool inside, unsigned row, float sum) {
    float v[1] = {sum / totals[row].y};
    if (inside) a.y[out + i] = v[0];
    if (a.int8.q != nullptr) store_int8_form(v, true, a.int8.q + out + i, a.int8.scales + (out + i) / 32);
  };
  if (splits == 1) return add_parts(warp, kDecodeWarps, warps, count, head_values, factors, warp_sums, store);

#if __CUDA_ARCH__ >= 900
  if (a.is_cluster) {
    // The parts stay in the shared memory of their blocks. Each block combines some of the values.
    const auto cluster = cooperative_groups::this_cluster();
    if (has_keys) {
      add_parts(warp, kDecodeWarps, warps, count, head_values, factors, warp_sums,
                [&](unsigned i, bool inside, unsigned, float sum) {
                  if (inside) shared[i] = sum;  // nobody else reads value i of the warps
                });
    }
    cluster.sync();
    if (warp < rows) {
      const auto numbers_of = [&](unsigned k) { return *cluster.map_shared_rank(row_numbers + warp, k); };
      const float2 all = weigh_parts(splits, numbers_of, factors[warp]);
      if (lane == 0) all_numbers[warp] = all;
    }
    __syncthreads();
    add_parts(
        warp * gridDim.x + blockIdx.x, kDecodeWarps * gridDim.x, splits, count, head_values, factors,
        [&](unsigned k, unsigned i) { return *cluster.map_shared_rank(shared + i, k); }, store);
    cluster.sync();  // until all have read what lies here
    return;
  }
#endif

  float* const parts = a.parts + std::size_t{unit} * gridDim.x * (min(a.group, 8u) * (head_values + 2));
  float* const mine = parts + blockIdx.x * part_floats;
  add_parts(warp, kDecodeWarps, warps, count, head_values, factors, warp_sums,
            [&](unsigned i, bool inside, unsigned, float sum) {
              if (inside) __stcg(mine + i, sum);
            });
  if (threadIdx.x < rows) {
    __stcg(mine + count + 2 * threadIdx.x, row_numbers[threadIdx.x].x);
    __stcg(mine + count + 2 * threadIdx.x + 1, row_numbers[threadIdx.x].y);
  }
  // The block that ends last has all parts to combine. The counter is back at 0 then.
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicInc(a.counters + unit, splits - 1) == splits - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  if (warp < rows) {
    const auto numbers_of = [&](unsigned k) {
      const float* const from = parts + k * part_floats + count + 2 * warp;
      return float2{__ldcg(from), __ldcg(from + 1)};
    };
    const float2 all = weigh_parts(splits, numbers_of, factors[warp]);
    if (lane == 0) all_numbers[warp] = all;
  }
  __syncthreads();
  add_parts(
      warp, kDecodeWarps, splits, count, head_values, factors,
      [&](unsigned k, unsigned i) { return __ldcg(parts + k * part_floats + i); }, store);
}

}  // namespace imago::kernels::cuda
