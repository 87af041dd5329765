#pragma once

// Attention of many tokens. A block takes some tokens with all heads that share keys, as rows of one tile, and passes
// over the keys that any of them sees. Keys and values are staged in shared memory as float16, two tiles of each: the
// next is copied while the current one is multiplied. Scores, their maxima and the sums stay in registers, in float32.

#include <climits>
#include <cstdint>

#include "device/cuda/check.h"
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

/// The tile of a block: four warps of 16 · kTall rows. Sums take kTall · kDims / 2 registers of a thread, scores
/// kTall · kKeys / 2.
template <int kDims>
struct PrefillTile {
  static constexpr int kWarps = 4;
  static constexpr int kTall = kDims <= 128 ? 2 : 1;
  static constexpr int kRows = kWarps * 16 * kTall;
  static constexpr int kKeys = kDims <= 128 ? 64 : 32;
  static constexpr int kChunks = kDims / 8;  // of 16 bytes in a row
  static constexpr int kSharedBytes = (kRows + 4 * kKeys) * kDims * 2;
};

/// Heads of a group that share a tile; larger groups take several tiles.
inline constexpr unsigned kPrefillHeads = 32;

/// Loads a tile of keys or values into shared memory; zeros past the last key and past the values of the head.
template <int kDims, CacheType kType, bool kPaged>
__device__ __forceinline__ void load_rows(std::byte* memory, std::uint32_t address, const std::byte* rows,
                                          const PageWindow<kPaged>& window, unsigned first, unsigned last,
                                          const CacheRows& shape) {
  using Tile = PrefillTile<kDims>;
#pragma unroll 4
  for (unsigned i = threadIdx.x; i < Tile::kKeys * Tile::kChunks; i += 32 * Tile::kWarps) {
    const unsigned row = i / Tile::kChunks, chunk = i % Tile::kChunks, key = first + row;
    const bool inside = key <= last && chunk * 8 < shape.head_values;
    const std::uint32_t at = chunk_at<kDims>(row, chunk);
    load_chunk<kType>(memory + at, address + at, rows + window.offset(inside ? key : first), chunk, inside);
  }
}

/// Grid: (kv_heads · chunks of a group) × tiles of tokens.
template <int kDims, CacheType kType, bool kPaged>
__global__ void __launch_bounds__(128, kDims <= 128 ? 2 : 1) prefill_attention(AttentionWork a, unsigned chunks) {
  using Tile = PrefillTile<kDims>;
  constexpr int kTall = Tile::kTall, kKeys = Tile::kKeys, kColumns = kKeys / 8;
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ int firsts[Tile::kRows], lasts[Tile::kRows], sequences[Tile::kRows];  // keys that tokens see
  const std::uint32_t queries = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  constexpr unsigned kQueryBytes = Tile::kRows * kDims * 2, kTileBytes = kKeys * kDims * 2;
  const auto keys_at = [&](unsigned stage) { return kQueryBytes + stage * 2 * kTileBytes; };  // values follow the keys

  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const unsigned kv_head = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
  const unsigned heads = min(a.group - chunk * kPrefillHeads, kPrefillHeads);
  const unsigned per_tile = Tile::kRows / min(a.group, kPrefillHeads);
  const unsigned first_token = (gridDim.y - 1 - blockIdx.y) * per_tile;  // tokens with the most keys go first
  const unsigned tokens = min(per_tile, a.tokens - first_token);
  const unsigned head_values = a.rows.head_values;
  const std::size_t first_head = std::size_t{kv_head} * a.group + chunk * kPrefillHeads;

  for (unsigned t = threadIdx.x; t < tokens; t += blockDim.x) {
    const SeenKeys seen = a.seen(first_token + t);
    firsts[t] = seen.first, lasts[t] = seen.last;
    sequences[t] = a.sequence == nullptr ? 0 : a.sequence[first_token + t];
  }
  // Without a cap, scores are scaled to be exponents of 2.
  const float query_scale = a.cap > 0 ? a.scale : a.scale * 1.4426950409f;
  for (unsigned i = threadIdx.x; i < Tile::kRows * Tile::kChunks; i += blockDim.x) {
    const unsigned row = i / Tile::kChunks, part = i % Tile::kChunks, token = row / heads;
    uint4 pairs = {};
    if (token < tokens && part * 8 < head_values) {
      const auto* from = reinterpret_cast<const float4*>(
          a.q + ((std::size_t{first_token} + token) * a.heads + first_head + row % heads) * head_values + part * 8);
      const float4 u = from[0], v = from[1];
      pairs = {safe_pair(u.x * query_scale, u.y * query_scale), safe_pair(u.z * query_scale, u.w * query_scale),
               safe_pair(v.x * query_scale, v.y * query_scale), safe_pair(v.z * query_scale, v.w * query_scale)};
    }
    *reinterpret_cast<uint4*>(memory + chunk_at<kDims>(row, part)) = pairs;
  }
  __syncthreads();

  float sums[kTall][kDims / 8][4] = {};
  float largest[kTall][2], total[kTall][2] = {};
  unsigned row_token[kTall][2];
#pragma unroll
  for (int m = 0; m < kTall; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      largest[m][h] = -INFINITY;
      row_token[m][h] = ((warp * kTall + m) * 16 + h * 8 + g) / heads;
    }
  }

  for (unsigned begin = 0; begin < tokens;) {
    const Segment segment = find_segment(firsts, lasts, sequences, begin, tokens);
    const bool is_whole = begin == 0 && segment.end == tokens;
    const GpuCache cache = a.caches[sequences[begin]];
    int row_last[kTall][2];  // -1: not in this segment
#pragma unroll
    for (int m = 0; m < kTall; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const unsigned token = row_token[m][h];
        row_last[m][h] = token >= begin && token < segment.end ? lasts[token] : -1;
      }
    }
    begin = segment.end;
    if (segment.empty) continue;
    const std::byte* const key_rows = cache.keys + kv_head * a.rows.head_bytes;
    const std::byte* const value_rows = cache.values + kv_head * a.rows.head_bytes;
    const auto load = [&](unsigned stage, unsigned key) {
      const unsigned at = keys_at(stage);
      const PageWindow<kPaged> window(a.rows, cache.pages, key, min(key + kKeys - 1, segment.last_of_any));
      load_rows<kDims, kType, kPaged>(memory + at, queries + at, key_rows, window, key, segment.last_of_any, a.rows);
      load_rows<kDims, kType, kPaged>(memory + at + kTileBytes, queries + at + kTileBytes, value_rows, window, key,
                                      segment.last_of_any, a.rows);
      end_copies();
    };

    __syncthreads();  // other warps may still read the previous segment
    load(0, segment.first_of_any);
    unsigned stage = 0;
    for (unsigned key = segment.first_of_any; key <= segment.last_of_any; key += kKeys, stage ^= 1) {
      wait_for_copies<0>();
      __syncthreads();  // this tile is complete, and all warps are done with the other one
      if (key + kKeys <= segment.last_of_any) load(stage ^ 1, key + kKeys);

      const std::uint32_t keys = queries + keys_at(stage), values = keys + kTileBytes;
      float s[kTall][kColumns][4] = {};
#pragma unroll
      for (int k = 0; k < kDims / 16; ++k) {
        std::uint32_t q[kTall][4];
#pragma unroll
        for (int m = 0; m < kTall; ++m) {
          load_tiles(q[m], queries + chunk_at<kDims>((warp * kTall + m) * 16 + lane % 16, 2 * k + lane / 16));
        }
#pragma unroll
        for (int n = 0; n < kColumns; n += 2) {
          std::uint32_t b[4];
          load_tiles(b, keys + chunk_at<kDims>(n * 8 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
#pragma unroll
          for (int m = 0; m < kTall; ++m) {
            multiply_add(s[m][n], q[m], b[0], b[1]);
            multiply_add(s[m][n + 1], q[m], b[2], b[3]);
          }
        }
      }

      const bool is_cut = !is_whole || key < segment.first_of_all || key + kKeys - 1 > segment.last_of_all;
#pragma unroll
      for (int m = 0; m < kTall; ++m) {
        if (a.cap > 0) {
#pragma unroll
          for (int n = 0; n < kColumns; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) s[m][n][i] = a.cap * 1.4426950409f * quick_tanh(s[m][n][i] / a.cap);
          }
        }
        if (is_cut) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int last = row_last[m][h];
            const unsigned low = last < 0 ? UINT_MAX : static_cast<unsigned>(firsts[row_token[m][h]]);
#pragma unroll
            for (int n = 0; n < kColumns; ++n) {
#pragma unroll
              for (int odd = 0; odd < 2; ++odd) {
                const unsigned at = key + n * 8 + 2 * c + odd;
                if (static_cast<int>(at) > last || at < low) s[m][n][2 * h + odd] = -INFINITY;
              }
            }
          }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float top = largest[m][h];
#pragma unroll
          for (int n = 0; n < kColumns; ++n) top = fmaxf(top, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
          top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
          top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
          // A row that has seen no key yet has sums of 0. Weights go up to 2^8, so that float16 keeps small ones.
          const float base = top == -INFINITY ? 0.0f : top;
          const float shrink = power_of_2(largest[m][h] - base);
          largest[m][h] = top;
          float sum = total[m][h] * shrink;
#pragma unroll
          for (int n = 0; n < kColumns; ++n) {
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
              float& weight = s[m][n][2 * h + odd];
              weight = power_of_2(weight - (base - 8.0f));
              sum += weight;
            }
          }
          total[m][h] = sum;
#pragma unroll
          for (int n = 0; n < kDims / 8; ++n) {
            sums[m][n][2 * h] *= shrink;
            sums[m][n][2 * h + 1] *= shrink;
          }
        }
      }

#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k) {
        std::uint32_t p[kTall][4];
#pragma unroll
        for (int m = 0; m < kTall; ++m) {
          p[m][0] = half_pair(s[m][2 * k][0], s[m][2 * k][1]);
          p[m][1] = half_pair(s[m][2 * k][2], s[m][2 * k][3]);
          p[m][2] = half_pair(s[m][2 * k + 1][0], s[m][2 * k + 1][1]);
          p[m][3] = half_pair(s[m][2 * k + 1][2], s[m][2 * k + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < kDims / 8; n += 2) {
          std::uint32_t b[4];
          load_tiles_transposed(b, values + chunk_at<kDims>(k * 16 + lane % 16, n + lane / 16));
#pragma unroll
          for (int m = 0; m < kTall; ++m) {
            multiply_add(sums[m][n], p[m], b[0], b[1]);
            multiply_add(sums[m][n + 1], p[m], b[2], b[3]);
          }
        }
      }
    }
  }

#pragma unroll
  for (int m = 0; m < kTall; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = total[m][h];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const unsigned token = row_token[m][h], row = (warp * kTall + m) * 16 + h * 8 + g;
      if (token >= tokens || lasts[token] < 0) continue;
      if (a.sinks != nullptr) {  // one more score, as a power of 2 like the others, with no value
        sum += power_of_2(a.sinks[first_head + row % heads] * 1.4426950409f - (largest[m][h] - 8.0f));
      }
      float* const y = a.y + ((std::size_t{first_token} + token) * a.heads + first_head + row % heads) * head_values;
      const float factor = 1.0f / sum;
#pragma unroll
      for (int n = 0; n < kDims / 8; ++n) {
        if (n * 8 >= head_values) break;
        *reinterpret_cast<float2*>(y + n * 8 + 2 * c) = {sums[m][n][2 * h] * factor, sums[m][n][2 * h + 1] * factor};
      }
    }
  }
}

template <int kDims, CacheType kType, bool kPaged>
void launch_prefill_of(const AttentionWork& work, Stream& stream) {
  using Tile = PrefillTile<kDims>;
  const unsigned chunks = (work.group + kPrefillHeads - 1) / kPrefillHeads;
  const unsigned per_tile = Tile::kRows / std::min(work.group, kPrefillHeads);
  imago::cuda::check(cudaFuncSetAttribute(prefill_attention<kDims, kType, kPaged>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kSharedBytes),
                     "shared memory of attention");
  const dim3 blocks(work.kv_heads * chunks, (work.tokens + per_tile - 1) / per_tile);
  prefill_attention<kDims, kType, kPaged>
      <<<blocks, 32 * Tile::kWarps, Tile::kSharedBytes, stream.handle()>>>(work, chunks);
  imago::cuda::check_launch("attention of many tokens");
}

template <CacheType kType, bool kPaged>
void launch_prefill(const AttentionWork& work, Stream& stream) {
  const unsigned values = work.rows.head_values;
  if (values <= 64) return launch_prefill_of<64, kType, kPaged>(work, stream);
  if (values <= 128) return launch_prefill_of<128, kType, kPaged>(work, stream);
  launch_prefill_of<256, kType, kPaged>(work, stream);
}

}  // namespace imago::kernels::cuda
