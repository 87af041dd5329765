#pragma once

// Attention of single tokens. A block takes up to 8 query heads that share a key head, and one split of the keys; its
// warps take 16 keys in turn (attention_decode_keys.cuh). Then the partial results of the warps are combined, and those
// of the blocks: in the shared memory of a cluster, or in device memory by the block that finishes last.

#include <cooperative_groups.h>

#include <cstdint>

#include "device/cuda/check.h"
#include "kernels/cuda/attention_decode_keys.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/launch.cuh"

namespace imago::kernels::cuda {

/// Combines the largest score and the total weight of `partials` partial results of a row, and sets the factor of each.
/// All lanes of a warp call it.
template <class Numbers>
__device__ __forceinline__ float2 combine_totals(unsigned partials, Numbers numbers_of, float* factors) {
  const unsigned lane = threadIdx.x % 32;
  const float2 own = lane < partials ? numbers_of(lane) : float2{-INFINITY, 0};  // usually there are no more
  float largest = own.x, total = 0;
  for (unsigned k = lane + 32; k < partials; k += 32) largest = fmaxf(largest, numbers_of(k).x);
  largest = warp_max(largest);
  for (unsigned k = lane; k < partials; k += 32) {
    const float2 numbers = k == lane ? own : numbers_of(k);
    const float factor = power_of_2(numbers.x - largest);
    factors[k] = factor;
    total += factor * numbers.y;
  }
  return {largest, warp_sum(total)};
}

/// Calls finish(i, inside, row, Σ factors · sums) for each value i of the rows, in groups of 32 that the warps take in
/// rotation: this one `first`, then every `step`. All lanes of a warp call `finish` together.
template <class Sums, class Finish>
__device__ __forceinline__ void combine_sums(unsigned first, unsigned step, unsigned partials, unsigned count,
                                             unsigned head_values, const float (*factors)[kDecodeBlocks], Sums sums_of,
                                             Finish finish) {
  for (unsigned i = first * 32 + threadIdx.x % 32; i < (count + 31) / 32 * 32; i += step * 32) {
    const bool inside = i < count;
    const unsigned row = inside ? i / head_values : 0;
    float sum = 0;
#pragma unroll 4
    for (unsigned k = 0; k < partials; ++k) sum += factors[row][k] * (inside ? sums_of(k, i) : 0.0f);
    finish(i, inside, row, sum);
  }
}

/// Grid: splits × items; a cluster for each item if a.is_cluster. Block: kDecodeWarps warps. Shared memory:
/// [warps][rows][head_values] sums.
template <int kSupers, CacheType kType, bool kPaged>
__global__ void __launch_bounds__(32 * kDecodeWarps, 1) decode_attention(DecodeWork a) {
  static_assert(kDecodeWarps == kDecodeHeads, "each warp combines one row");
  extern __shared__ float shared[];
  __shared__ float2 numbers[kDecodeWarps][kDecodeHeads], row_numbers[kDecodeHeads], all_numbers[kDecodeHeads];
  __shared__ float factors[kDecodeHeads][kDecodeBlocks];
  __shared__ bool is_last;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const unsigned item = blockIdx.y, token = item / (a.kv_heads * a.chunks);
  const unsigned kv_head = item / a.chunks % a.kv_heads, chunk = item % a.chunks;
  const unsigned head_values = a.rows.head_values, rows = min(a.group - chunk * 8, 8u);
  const unsigned count = rows * head_values, partial_floats = rows * (head_values + 2);
  const std::size_t out = (std::size_t{token} * a.heads + kv_head * a.group + chunk * 8) * head_values;
  // Positions are copied before the first kernel of a pass, and earlier keys were stored by earlier passes: both may be
  // read while the previous kernel still runs.
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
  PlacedHeads<kSupers, kType, kPaged> heads(a, out, own_key, rows);
  constexpr bool kEarly = kLoadsAhead<kSupers, kType>;
  KeysAhead<kSupers, kType> ahead;
  const unsigned own = begin + warp * 16;  // the warp's first key
  const auto load_first = [&](unsigned limit) {
    const auto window = window_of_keys<kPaged>(a.rows, cache.pages, own, limit);
#pragma unroll
    for (int t = 0; t < 2; ++t) ahead.load_keys(t, keys, window, own, limit, head_values, g, c);
    ahead.values.load(ValueRows(values, window, own, limit, c), head_values, g);
  };
  const bool places = a.k != nullptr && position >= 0 && has_keys;
  if (places) {
    heads.fetch_rotation(position);
    if constexpr (kEarly) load_first(min(stop, end - 1));  // the last key is not stored yet
  }
  wait_for_previous();
  if (position < 0 || (!has_keys && !(a.is_cluster && splits > 1))) return;  // all blocks of a cluster help to combine
  float query[2 * kSupers][8];
  if (places) {
    heads.place(cache, kv_head, position, stop == end, shared);
    load_query<2 * kSupers>(query, shared + g * head_values, g < rows, head_values, c);
    if constexpr (kEarly) {
      ahead.take_last(end - 1, own, heads.key(shared), heads.value(shared), head_values, g, c);
    }
    __syncthreads();  // sums will overwrite the queries
  } else if (has_keys) {
    load_query<2 * kSupers>(query, a.q + out + g * head_values, g < rows, head_values, c);
    if constexpr (kEarly) load_first(stop);
  }

  if (has_keys && own < stop) {
    DecodeState<kSupers, kType> state;
    set_query<kSupers, kType>(state, query, a.scale);
    for (unsigned key = own; key < stop; key += kDecodeKeys) {
      attend_to_keys<kSupers, kType, kPaged>(a, state, ahead, keys, values, cache.pages, key, key + kDecodeKeys, stop,
                                             g, c);
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
  const unsigned warps = min((stop - begin + 15) / 16, static_cast<unsigned>(kDecodeWarps));  // warps with keys
  const auto warp_sums = [&](unsigned k, unsigned i) { return shared[k * count + i]; };
  if (has_keys) {
    __syncthreads();
    if (warp < rows) {
      const float2 mine = combine_totals(
          warps, [&](unsigned k) { return numbers[k][warp]; }, factors[warp]);
      if (lane == 0) row_numbers[warp] = mine;
    }
    __syncthreads();
  }

  const float2* totals = splits == 1 ? row_numbers : all_numbers;
  const auto store = [&](unsigned i, bool inside, unsigned row, float sum) {
    float total = totals[row].y;
    if (a.sinks != nullptr) {  // one more score, as a power of 2 like the others, with no value
      const float sink = a.sinks[kv_head * a.group + chunk * 8 + row] * 1.4426950409f;
      total += power_of_2(sink - (totals[row].x - kWeightBoost<kType>));
    }
    float v[1] = {sum / total};
    if (inside) a.y[out + i] = v[0];
    if (a.int8.q != nullptr) store_quantized(v, true, a.int8.q + out + i, a.int8.scales + (out + i) / 32);
  };
  if (splits == 1) return combine_sums(warp, kDecodeWarps, warps, count, head_values, factors, warp_sums, store);

#if __CUDA_ARCH__ >= 900
  if (a.is_cluster) {
    // Partial results stay in the shared memory of their blocks. Each block combines some of the values.
    const auto cluster = cooperative_groups::this_cluster();
    if (has_keys) {
      combine_sums(warp, kDecodeWarps, warps, count, head_values, factors, warp_sums,
                   [&](unsigned i, bool inside, unsigned, float sum) {
                     if (inside) shared[i] = sum;  // no other thread reads value i
                   });
    }
    cluster.sync();
    if (warp < rows) {
      const auto numbers_of = [&](unsigned k) { return *cluster.map_shared_rank(row_numbers + warp, k); };
      const float2 all = combine_totals(splits, numbers_of, factors[warp]);
      if (lane == 0) all_numbers[warp] = all;
    }
    __syncthreads();
    combine_sums(
        warp * gridDim.x + blockIdx.x, kDecodeWarps * gridDim.x, splits, count, head_values, factors,
        [&](unsigned k, unsigned i) { return *cluster.map_shared_rank(shared + i, k); }, store);
    cluster.sync();  // this block's shared memory must live until all have read it
    return;
  }
#endif

  float* const partials = a.partials + std::size_t{item} * gridDim.x * (min(a.group, 8u) * (head_values + 2));
  float* const mine = partials + blockIdx.x * partial_floats;
  combine_sums(warp, kDecodeWarps, warps, count, head_values, factors, warp_sums,
               [&](unsigned i, bool inside, unsigned, float sum) {
                 if (inside) __stcg(mine + i, sum);
               });
  if (threadIdx.x < rows) {
    __stcg(mine + count + 2 * threadIdx.x, row_numbers[threadIdx.x].x);
    __stcg(mine + count + 2 * threadIdx.x + 1, row_numbers[threadIdx.x].y);
  }
  // The block that finishes last combines all partial results. The counter is back at 0 then.
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicInc(a.counters + item, splits - 1) == splits - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  if (warp < rows) {
    const auto numbers_of = [&](unsigned k) {
      const float* const from = partials + k * partial_floats + count + 2 * warp;
      return float2{__ldcg(from), __ldcg(from + 1)};
    };
    const float2 all = combine_totals(splits, numbers_of, factors[warp]);
    if (lane == 0) all_numbers[warp] = all;
  }
  __syncthreads();
  combine_sums(
      warp, kDecodeWarps, splits, count, head_values, factors,
      [&](unsigned k, unsigned i) { return __ldcg(partials + k * partial_floats + i); }, store);
}

template <int kSupers, CacheType kType, bool kPaged>
void launch_decode_of(const DecodeWork& work, const DecodePlan& plan, Stream& stream) {
  const std::size_t rows = std::min<std::size_t>(work.group, kDecodeHeads);
  const std::size_t shared = kDecodeWarps * rows * work.rows.head_values * sizeof(float);
  if (shared > 40 * 1024) {  // beside the static shared memory of the kernel
    imago::cuda::check(cudaFuncSetAttribute(decode_attention<kSupers, kType, kPaged>,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
                       "shared memory of attention");
  }
  const dim3 blocks(static_cast<unsigned>(plan.splits), static_cast<unsigned>(plan.items));
  launch_overlapped_cluster("attention of few tokens", decode_attention<kSupers, kType, kPaged>, blocks,
                            32 * kDecodeWarps, shared, plan.is_cluster ? static_cast<unsigned>(plan.splits) : 0,
                            stream.handle(), work);
}

template <CacheType kType, bool kPaged>
void launch_decode(const DecodeWork& work, const DecodePlan& plan, Stream& stream) {
  const unsigned values = work.rows.head_values;
  if (values <= 64) return launch_decode_of<1, kType, kPaged>(work, plan, stream);
  if (values <= 128) return launch_decode_of<2, kType, kPaged>(work, plan, stream);
  launch_decode_of<4, kType, kPaged>(work, plan, stream);
}

}  // namespace imago::kernels::cuda
