#pragma once

// How attention is cut into blocks, for host and device: what is launched depends on the longest position alone, so
// that one recorded graph serves all shorter ones; what is computed depends on the token's own.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/host_device.h"

namespace imago::kernels::cuda {

/// Up to so many tokens are decoded one by one, split over keys. More of them share tiles of keys.
inline constexpr std::size_t kDecodeTokens = 16;
/// Heads of queries that a block of the decoding kernel takes together: half the rows of a tensor core's tile, see
/// there.
inline constexpr std::size_t kDecodeHeads = 8;
/// Keys that the warps of a block look at in one go: 16 each.
inline constexpr std::size_t kDecodeWarps = 8;
inline constexpr std::size_t kDecodeKeys = 16 * kDecodeWarps;
/// One block on each multiprocessor of the largest chips; smaller ones take two turns.
inline constexpr std::size_t kDecodeBlocks = 132;
/// A block looks at so many keys anyway.
inline constexpr std::size_t kUnsplitKeys = kDecodeKeys;

/// The keys that a token at `position` sees: [first, position].
IMAGO_HD std::uint32_t first_key(std::int32_t position, std::uint32_t window) noexcept {
  const auto end = static_cast<std::uint32_t>(position) + 1;
  return window != 0 && end > window ? end - window : 0;
}

/// Keys of each of `splits` parts of `keys`: whole passes of a block, so that later parts may be empty.
IMAGO_HD std::uint32_t keys_per_split(std::uint32_t keys, std::uint32_t splits) noexcept {
  const std::uint32_t least = (keys + splits - 1) / splits;
  const std::uint32_t wanted = keys <= kUnsplitKeys ? static_cast<std::uint32_t>(kUnsplitKeys) : least;
  return (wanted + kDecodeKeys - 1) / kDecodeKeys * kDecodeKeys;
}

/// Blocks of a cluster read each other's shared memory, which combines up to 8 of them sooner than by way of device
/// memory. Past so many keys more blocks count for more.
inline constexpr std::size_t kClusterBlocks = 8;
inline constexpr std::size_t kClusterKeysF16 = 4096, kClusterKeys = 1024;

/// What decoding launches for `units` pairs of a token and a group of heads; clusters up to so many keys.
struct DecodePlan {
  std::size_t units, splits;
  bool is_cluster = false;
};
inline DecodePlan decode_plan(std::size_t tokens, std::size_t kv_heads, std::size_t group, std::size_t most_keys,
                              std::size_t most_cluster_keys) noexcept {
  const std::size_t units = tokens * kv_heads * ((group + kDecodeHeads - 1) / kDecodeHeads);
  if (most_keys <= kUnsplitKeys || units == 0) return {units, 1};
  const std::size_t passes = (most_keys + kDecodeKeys - 1) / kDecodeKeys, room = kDecodeBlocks / units;
  if (most_keys > most_cluster_keys || room < 2) return {units, std::clamp<std::size_t>(room, 1, passes)};
  return {units, std::min({std::bit_floor(room), std::bit_ceil(passes), kClusterBlocks}), true};
}

/// Scratch of decoding: a counter for each unit that is split, then the parts' results: sums, largest score, total
/// weight.
inline constexpr std::size_t kDecodeCounterBytes = 1024;
static_assert(kDecodeBlocks * sizeof(std::uint32_t) <= kDecodeCounterBytes, "only units that are fewer are split");
inline std::size_t decode_scratch_bytes(const DecodePlan& plan, std::size_t group, std::size_t head_values) noexcept {
  const std::size_t rows = std::min(group, kDecodeHeads);
  return kDecodeCounterBytes +
         (plan.splits == 1 ? 0 : plan.units * plan.splits * rows * (head_values + 2) * sizeof(float));
}

}  // namespace imago::kernels::cuda
