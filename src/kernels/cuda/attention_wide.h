#pragma once

// How attention with heads of more than kMostTileValues values is split into blocks (attention_wide.cuh).

#include <algorithm>
#include <cstddef>

#include "kernels/cuda/attention_work.h"

namespace imago::kernels::cuda {

inline constexpr float kLog2E = 1.4426950409f;
/// Weights go up to 2^8, so that float16 keeps small ones.
inline constexpr float kWideBoost = 8.0f;
inline constexpr std::size_t kWideWarps = 8;
inline constexpr std::size_t kWideKeys = 32;  ///< in a tile: one for each lane of a warp
/// Rows of a tile of queries, in 16s: 1 or this.
inline constexpr std::size_t kWideTall = 4;
/// Fewer keys than these are not worth a block of their own.
inline constexpr std::size_t kWideSplitKeys = 2 * kWideKeys;

/// A tile has `tokens_of_tile` tokens with up to 16 · tall heads of a group; its keys are split over `splits` blocks,
/// which leave their sums to another kernel if they are several.
struct WidePlan {
  std::size_t tall = 1, chunks = 1, tokens_of_tile = 1, tiles = 1, splits = 1;
  std::size_t partial_bytes = 0;
};

/// `split_keys`: the most keys of a token where tokens are few, so that their keys are split; 0: they are not.
inline WidePlan wide_plan(std::size_t tokens, std::size_t kv_heads, std::size_t group, std::size_t head_values,
                          std::size_t split_keys) noexcept {
  WidePlan plan;
  plan.tall = (split_keys != 0 ? group : tokens * group) <= 16 ? 1 : kWideTall;
  const std::size_t rows = 16 * plan.tall;
  plan.chunks = (group + rows - 1) / rows;
  plan.tokens_of_tile = split_keys != 0 ? 1 : rows / std::min(group, rows);
  plan.tiles = (tokens + plan.tokens_of_tile - 1) / plan.tokens_of_tile;
  const std::size_t items = kv_heads * plan.chunks * plan.tiles;
  if (split_keys == 0 || items == 0) return plan;
  const std::size_t parts = (split_keys + kWideSplitKeys - 1) / kWideSplitKeys;
  plan.splits = std::clamp<std::size_t>(kDecodeBlocks / items, 1, parts);
  if (plan.splits > 1) {
    plan.partial_bytes = tokens * kv_heads * group * plan.splits * (head_values + 2) * sizeof(float);
  }
  return plan;
}

/// Values of a row in shared memory: warps take 64 of them.
IMAGO_HD std::size_t wide_row_values(std::size_t head_values) noexcept { return (head_values + 63) / 64 * 64; }
/// A row of weights in shared memory, in float16: rows of 8 lie in different banks.
inline constexpr std::size_t kWideWeightRow = kWideKeys + 8;
inline constexpr std::size_t kWideScoreRow = kWideKeys + 4;

/// Queries, two tiles of keys, two of values unless those are part of the keys, scores (of low blocks in two parts) and
/// weights.
inline std::size_t wide_shared_bytes(std::size_t head_values, bool shared_values, std::size_t tall) noexcept {
  const std::size_t rows = 16 * tall, tiles = shared_values ? 2 : 4;
  return (rows + tiles * kWideKeys) * wide_row_values(head_values) * 2 +
         (tall == 1 ? 2 : 1) * rows * kWideScoreRow * sizeof(float) + rows * kWideWeightRow * 2;
}

/// A split of the keys of [first, last]: whole tiles, the last ones empty.
IMAGO_HD SeenKeys wide_split(SeenKeys keys, std::uint32_t split, std::uint32_t splits) noexcept {
  constexpr auto kTile = static_cast<std::int32_t>(kWideKeys);
  const auto count = static_cast<std::int32_t>(splits);
  const std::int32_t least = (keys.last - keys.first + count) / count;  // of last - first + 1 keys, rounded up
  const std::int32_t each = (least + kTile - 1) / kTile * kTile;
  const std::int32_t first = keys.first + static_cast<std::int32_t>(split) * each;
  return {first, first + each - 1 < keys.last ? first + each - 1 : keys.last};
}

struct WideWork : AttentionWork {
  std::uint32_t shared_values = 0;  // as in AttentionArgs
  float* partials = nullptr;        // [tokens][heads][splits]: sums of head_values, largest score, total weight
};
/// Leaves the sums of several splits to whoever adds them up.
template <CacheType kType, bool kPaged>
void launch_wide(const WideWork& work, const WidePlan& plan, Stream& stream);

}  // namespace imago::kernels::cuda
