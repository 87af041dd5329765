#pragma once

// Attention with heads too wide for registers: those of 512 values, and latent attention, whose rows of 576 values are
// keys and values of all heads at once. A block takes up to 64 rows of queries, tokens with heads that share keys, and
// reads each key once for all of them. Its warps share the scores of 32 keys through shared memory; then each sums up
// 64 values of all rows.

#include <climits>
#include <cstdint>

#include "device/cuda/check.h"
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/attention_wide.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

/// Scores of 32 keys, before softmax, into shared memory: of rows 16 · m … and 8 or 16 keys a warp. With 16 rows in all
/// there are more warps than tiles: half of them take the other half of the values, into a second part of the scores.
template <int kTall>
__device__ __forceinline__ void score_wide_keys(std::uint32_t queries, std::uint32_t keys, unsigned dims,
                                                float* scores) {
  constexpr unsigned kParts = kWideWarps / kTall, kColumns = kTall == 1 ? 1 : 4 / kParts;
  constexpr unsigned kPlanes = kParts * kColumns / 4;
  static_assert(kPlanes * 4 == kParts * kColumns && kPlanes == (kTall == 1 ? 2 : 1));
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const unsigned m = warp % kTall, first = warp / kTall * kColumns, column = first % 4, plane = first / 4;
  const unsigned steps = dims / 32 / kPlanes;
  float s[kColumns][4] = {};
#pragma unroll 3
  for (unsigned k = plane * steps; k < (plane + 1) * steps; ++k) {
    std::uint32_t near[4], far[4];
    load_tiles(near, queries + chunk_at(dims, m * 16 + lane % 16, 4 * k + lane / 16));
    load_tiles(far, queries + chunk_at(dims, m * 16 + lane % 16, 4 * k + 2 + lane / 16));
#pragma unroll
    for (unsigned n = 0; n < kColumns; ++n) {
      std::uint32_t b[4];
      load_tiles(b, keys + chunk_at(dims, (column + n) * 8 + lane % 8, 4 * k + lane / 8));
      multiply_add(s[n], near, b[0], b[1]);
      multiply_add(s[n], far, b[2], b[3]);
    }
  }
#pragma unroll
  for (unsigned n = 0; n < kColumns; ++n) {
    float* const to = scores + (plane * 16 * kTall + m * 16 + g) * kWideScoreRow + (column + n) * 8 + 2 * c;
    *reinterpret_cast<float2*>(to) = {s[n][0], s[n][1]};
    *reinterpret_cast<float2*>(to + 8 * kWideScoreRow) = {s[n][2], s[n][3]};
  }
}

/// Grid: (kv_heads · chunks of a group) × tiles of tokens × splits.
template <int kTall, CacheType kType, bool kPaged, bool kShared>
__global__ void __launch_bounds__(32 * kWideWarps, 1)
    wide_attention(WideWork a, unsigned chunks, unsigned tokens_of_tile) {
  constexpr unsigned kRows = 16 * kTall, kRowsOfWarp = kRows / kWideWarps, kPlanes = kTall == 1 ? 2 : 1;
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ int firsts[kRows], lasts[kRows], sequences[kRows];  // keys that tokens see
  __shared__ float shrinks[kRows];
  __shared__ float2 numbers[kRows];  // largest score, total weight
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const unsigned head_values = a.rows.head_values;
  const unsigned dims = static_cast<unsigned>(wide_row_values(head_values)), row_chunks = dims / 8;
  const unsigned value_end = kShared ? a.shared_values : head_values;
  const std::uint32_t queries = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  const unsigned tile_bytes = kWideKeys * dims * 2, stage_bytes = (kShared ? 1 : 2) * tile_bytes;
  const unsigned keys_begin = kRows * dims * 2;
  float* const scores = reinterpret_cast<float*>(memory + keys_begin + 2 * stage_bytes);
  auto* const weights = reinterpret_cast<__half*>(scores + kPlanes * kRows * kWideScoreRow);
  const std::uint32_t weights_at = static_cast<std::uint32_t>(__cvta_generic_to_shared(weights));

  const unsigned kv_head = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
  const unsigned heads = min(a.group - chunk * kRows, kRows);
  const unsigned first_token = (gridDim.y - 1 - blockIdx.y) * tokens_of_tile;  // tokens with the most keys go first
  const unsigned tokens = min(tokens_of_tile, a.tokens - first_token);
  const std::size_t first_head = std::size_t{kv_head} * a.group + chunk * kRows;
  const auto row_of_y = [&](unsigned row) {
    return (std::size_t{first_token} + row / heads) * a.heads + first_head + row % heads;
  };

  wait_for_previous();
  for (unsigned t = threadIdx.x; t < tokens; t += blockDim.x) {
    const SeenKeys seen = a.seen(first_token + t);
    firsts[t] = seen.first, lasts[t] = seen.last;
    sequences[t] = a.sequence == nullptr ? 0 : a.sequence[first_token + t];
  }
  // Without a cap, scores are scaled to be exponents of 2.
  const float query_scale = a.cap > 0 ? a.scale : a.scale * kLog2E;
  for (unsigned row = warp; row < kRows; row += kWideWarps) {
    const float* const q = a.q + row_of_y(row) * head_values;
    for (unsigned part = lane; part < row_chunks; part += 32) {
      uint4 pairs = {};
      if (row < tokens * heads && part * 8 < head_values) {
        const auto* from = reinterpret_cast<const float4*>(q + part * 8);
        const float4 u = from[0], v = from[1];
        pairs = {safe_pair(u.x * query_scale, u.y * query_scale), safe_pair(u.z * query_scale, u.w * query_scale),
                 safe_pair(v.x * query_scale, v.y * query_scale), safe_pair(v.z * query_scale, v.w * query_scale)};
      }
      *reinterpret_cast<uint4*>(memory + chunk_at(dims, row, part)) = pairs;
    }
  }
  __syncthreads();

  float sums[kTall][8][4] = {};
  float largest[kRowsOfWarp], total[kRowsOfWarp] = {};  // of the rows whose weights this warp makes
#pragma unroll
  for (unsigned r = 0; r < kRowsOfWarp; ++r) largest[r] = -INFINITY;

  for (unsigned begin = 0; begin < tokens;) {
    const Segment segment = find_segment(firsts, lasts, sequences, begin, tokens);
    const GpuCache cache = a.caches[sequences[begin]];
    // With several splits a tile has one token.
    const SeenKeys own = wide_split({static_cast<int>(segment.first_of_any), static_cast<int>(segment.last_of_any)},
                                    blockIdx.z, gridDim.z);
    int low[kRowsOfWarp], high[kRowsOfWarp];
#pragma unroll
    for (unsigned r = 0; r < kRowsOfWarp; ++r) {
      const unsigned token = (warp * kRowsOfWarp + r) / heads;
      const bool inside = token >= begin && token < segment.end;
      low[r] = inside ? firsts[token] : 0;
      high[r] = inside ? min(lasts[token], own.last) : -1;
    }
    begin = segment.end;
    if (segment.empty || own.first > own.last) continue;
    const std::byte* const key_rows = cache.keys + kv_head * a.rows.head_bytes;
    const std::byte* const value_rows = cache.values + kv_head * a.rows.head_bytes;
    const unsigned last = static_cast<unsigned>(own.last);
    const auto load = [&](unsigned stage, unsigned key) {
      const unsigned at = keys_begin + stage * stage_bytes;
      const PageWindow<kPaged> window(a.rows, cache.pages, key, min(key + static_cast<unsigned>(kWideKeys) - 1, last));
      for (unsigned row = warp; row < kWideKeys; row += kWideWarps) {
        const bool there = key + row <= last;
        const std::ptrdiff_t offset = window.offset(there ? key + row : key);
        for (unsigned part = lane; part < row_chunks; part += 32) {
          const bool inside = there && part * 8 < head_values;
          const std::uint32_t to = at + chunk_at(dims, row, part);
          load_chunk<kType>(memory + to, queries + to, key_rows + offset, part, inside);
          if constexpr (!kShared) {
            load_chunk<kType>(memory + to + tile_bytes, queries + to + tile_bytes, value_rows + offset, part, inside);
          }
        }
      }
      end_copies();
    };

    __syncthreads();  // other warps may still read the previous segment
    load(0, static_cast<unsigned>(own.first));
    unsigned stage = 0;
    for (unsigned key = static_cast<unsigned>(own.first); key <= last; key += kWideKeys, stage ^= 1) {
      wait_for_copies<0>();
      __syncthreads();  // this tile is complete, and all warps are done with the other one
      if (key + kWideKeys <= last) load(stage ^ 1, key + kWideKeys);
      const std::uint32_t keys = queries + keys_begin + stage * stage_bytes;
      score_wide_keys<kTall>(queries, keys, dims, scores);
      __syncthreads();

#pragma unroll
      for (unsigned r = 0; r < kRowsOfWarp; ++r) {
        const unsigned row = warp * kRowsOfWarp + r;
        float score = scores[row * kWideScoreRow + lane];
        if constexpr (kPlanes == 2) score += scores[(kRows + row) * kWideScoreRow + lane];
        if (a.cap > 0) score = a.cap * kLog2E * quick_tanh(score / a.cap);
        const int at = static_cast<int>(key + lane);
        if (at < low[r] || at > high[r]) score = -INFINITY;
        const float top = fmaxf(largest[r], warp_max(score));
        const float base = top == -INFINITY ? 0.0f : top;  // a row that has seen no key yet has sums of 0
        const float shrink = power_of_2(largest[r] - base), weight = power_of_2(score - (base - kWideBoost));
        largest[r] = top;
        total[r] = total[r] * shrink + warp_sum(weight);
        weights[row * kWideWeightRow + lane] = __float2half_rn(weight);
        if (lane == 0) shrinks[row] = shrink;
      }
      __syncthreads();

      if (warp * 64 >= value_end) continue;
      const std::uint32_t values = keys + (kShared ? 0 : tile_bytes);
#pragma unroll
      for (int m = 0; m < kTall; ++m) {
        const float near = shrinks[m * 16 + g], far = shrinks[m * 16 + 8 + g];
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          sums[m][n][0] *= near, sums[m][n][1] *= near;
          sums[m][n][2] *= far, sums[m][n][3] *= far;
        }
      }
#pragma unroll
      for (unsigned k = 0; k < kWideKeys / 16; ++k) {
        std::uint32_t p[kTall][4];
#pragma unroll
        for (unsigned m = 0; m < kTall; ++m) {
          load_tiles(p[m], weights_at + ((m * 16 + lane % 16) * kWideWeightRow + k * 16 + lane / 16 * 8) * 2);
        }
#pragma unroll
        for (unsigned n = 0; n < 8; n += 2) {
          std::uint32_t b[4];
          load_tiles_transposed(b, values + chunk_at(dims, k * 16 + lane % 16, warp * 8 + n + lane / 16));
#pragma unroll
          for (int m = 0; m < kTall; ++m) {
            multiply_add(sums[m][n], p[m], b[0], b[1]);
            multiply_add(sums[m][n + 1], p[m], b[2], b[3]);
          }
        }
      }
    }
  }

  if (lane == 0) {
#pragma unroll
    for (unsigned r = 0; r < kRowsOfWarp; ++r) numbers[warp * kRowsOfWarp + r] = {largest[r], total[r]};
  }
  __syncthreads();
#pragma unroll
  for (int m = 0; m < kTall; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const unsigned row = m * 16 + h * 8 + g;
      if (row >= tokens * heads || lasts[row / heads] < 0) continue;
      const float2 own = numbers[row];
      float* to = a.y + row_of_y(row) * head_values;
      float factor = 1;
      if (gridDim.z > 1) {
        to = a.partials + (row_of_y(row) * gridDim.z + blockIdx.z) * (head_values + 2);
        if (warp == 0 && c == 0) to[head_values] = own.x, to[head_values + 1] = own.y;
      } else {
        float sum = own.y;
        if (a.sinks != nullptr) {  // one more score, as a power of 2 like the others, with no value
          sum += power_of_2(a.sinks[first_head + row % heads] * kLog2E - (own.x - kWideBoost));
        }
        factor = 1.0f / sum;
      }
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const unsigned value = warp * 64 + n * 8;
        if (value >= value_end) break;
        *reinterpret_cast<float2*>(to + value + 2 * c) = {sums[m][n][2 * h] * factor, sums[m][n][2 * h + 1] * factor};
      }
    }
  }
}

template <int kTall, CacheType kType, bool kPaged, bool kShared>
void launch_wide_of(const WideWork& work, const WidePlan& plan, Stream& stream) {
  const auto kernel = wide_attention<kTall, kType, kPaged, kShared>;
  const std::size_t shared = wide_shared_bytes(work.rows.head_values, kShared, kTall);
  imago::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
      "shared memory of attention");
  const dim3 blocks(static_cast<unsigned>(work.kv_heads * plan.chunks), static_cast<unsigned>(plan.tiles),
                    static_cast<unsigned>(plan.splits));
  launch_overlapped("attention with wide heads", kernel, blocks, 32 * kWideWarps, shared, stream, work,
                    static_cast<unsigned>(plan.chunks), static_cast<unsigned>(plan.tokens_of_tile));
}

template <CacheType kType, bool kPaged>
void launch_wide(const WideWork& work, const WidePlan& plan, Stream& stream) {
  const auto launch = [&]<int kTall>(std::integral_constant<int, kTall>) {
    if (work.shared_values != 0) return launch_wide_of<kTall, kType, kPaged, true>(work, plan, stream);
    launch_wide_of<kTall, kType, kPaged, false>(work, plan, stream);
  };
  if (plan.tall == 1) return launch(std::integral_constant<int, 1>());
  launch(std::integral_constant<int, kWideTall>());
}

}  // namespace imago::kernels::cuda
