#pragma once

// Attention of single tokens: a block takes up to 8 heads of queries that share keys, and a part of these keys; its
// warps take 16 keys in turn (attention_decode_keys.cuh). Then the parts of warps become one, and those of blocks.

#include <cooperative_groups.h>

#include <cstdint>

#include "kernels/cuda/attention_decode_keys.cuh"
#include "kernels/cuda/attention_place.cuh"
#include "kernels/cuda/int8_form.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"

namespace imago::kernels::cuda {

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
  // Places are sent before the first kernel of a pass, and earlier keys are there since earlier passes: they may be
  // read while the kernel before still runs.
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
  KeysAhead<kSupers, kType> ahead;
  const unsigned own = begin + warp * 16;  // the warp's first key
  const auto load_first = [&](unsigned limit) {
#pragma unroll
    for (int t = 0; t < 2; ++t) ahead.load_keys(t, keys, a.rows.row_bytes, own, limit, head_values, g, c);
    ahead.values.load(ValueRows(values, a.rows.row_bytes, own, limit, c), head_values, g);
  };
  const bool places = a.k != nullptr && position >= 0 && has_keys;
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
      ahead.take_last(end - 1, own, heads.key(shared), heads.value(shared), head_values, g, c);
    }
    __syncthreads();  // sums will lie there
  } else if (has_keys) {
    load_query<2 * kSupers>(query, a.q + out + g * head_values, g < rows, head_values, c);
    if constexpr (kEarly) load_first(stop);
  }

  if (has_keys && own < stop) {
    DecodeState<kSupers, kType> state;
    set_query<kSupers, kType>(state, query, a.scale);
    for (unsigned key = own; key < stop; key += kDecodeKeys) {
      look_at_keys<kSupers, kType>(a, state, ahead, keys, values, key, key + kDecodeKeys, stop, g, c);
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
