#pragma once

// What attention kernels get, how attention is split into blocks, and the launches to choose from. What is launched
// depends on the longest position alone, so that one recorded graph serves all shorter ones; what a block computes
// depends on its token's own position.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/host_device.h"

namespace imago::kernels::cuda {

// ---- the split into blocks

/// Up to this many tokens are decoded one by one, split over keys. More tokens share tiles of keys.
inline constexpr std::size_t kDecodeTokens = 16;
/// Query heads that a block of the decoding kernel takes together: half the rows of a tensor core tile (see
/// attention_decode_keys.cuh).
inline constexpr std::size_t kDecodeHeads = 8;
/// Keys that the warps of a block process in one pass: 16 each.
inline constexpr std::size_t kDecodeWarps = 8;
inline constexpr std::size_t kDecodeKeys = 16 * kDecodeWarps;
/// One block on each multiprocessor of the largest chips; smaller chips run them in two waves.
inline constexpr std::size_t kDecodeBlocks = 132;
/// Keys of one pass of a block: fewer are not split.
inline constexpr std::size_t kUnsplitKeys = kDecodeKeys;

/// The keys that a token at `position` sees: [first, position].
IMAGO_HD std::uint32_t first_key(std::int32_t position, std::uint32_t window) noexcept {
  const auto end = static_cast<std::uint32_t>(position) + 1;
  return window != 0 && end > window ? end - window : 0;
}

/// The keys [first, last] that a token sees; last is -1 for a token that has no place.
struct SeenKeys {
  std::int32_t first, last;
};
/// `text_end`: TokenPlaces::text_end of the token; 0 if there is none.
IMAGO_HD SeenKeys seen_keys(std::int32_t position, std::int32_t text_end, std::uint32_t window) noexcept {
  if (position < 0) return {0, -1};
  if (text_end == 0) return {static_cast<std::int32_t>(first_key(position, window)), position};
  if (window == 0) return {0, text_end - 1};
  const auto reach = static_cast<std::int32_t>(window / 2);
  return {position > reach ? position - reach : 0, text_end - 1 - position > reach ? position + reach : text_end - 1};
}

/// Keys of each of `splits` splits of `keys`: whole passes of a block, so the last splits may be empty.
IMAGO_HD std::uint32_t keys_per_split(std::uint32_t keys, std::uint32_t splits) noexcept {
  const std::uint32_t least = (keys + splits - 1) / splits;
  const std::uint32_t wanted = keys <= kUnsplitKeys ? static_cast<std::uint32_t>(kUnsplitKeys) : least;
  return (wanted + kDecodeKeys - 1) / kDecodeKeys * kDecodeKeys;
}

/// Blocks of a cluster read each other's shared memory, which combines up to 8 blocks faster than device memory does.
/// Beyond this many keys, more blocks matter more.
inline constexpr std::size_t kClusterBlocks = 8;
inline constexpr std::size_t kClusterKeysF16 = 4096, kClusterKeys = 1024;

/// The launch of decoding attention. An item is a token with up to kDecodeHeads query heads that share a key head; its
/// keys are split over `splits` blocks, which form a cluster up to `most_cluster_keys` keys.
struct DecodePlan {
  std::size_t items, splits;
  bool is_cluster = false;
};
inline DecodePlan decode_plan(std::size_t tokens, std::size_t kv_heads, std::size_t group, std::size_t most_keys,
                              std::size_t most_cluster_keys) noexcept {
  const std::size_t items = tokens * kv_heads * ((group + kDecodeHeads - 1) / kDecodeHeads);
  if (most_keys <= kUnsplitKeys || items == 0) return {items, 1};
  const std::size_t passes = (most_keys + kDecodeKeys - 1) / kDecodeKeys, room = kDecodeBlocks / items;
  if (most_keys > most_cluster_keys || room < 2) return {items, std::clamp<std::size_t>(room, 1, passes)};
  return {items, std::min({std::bit_floor(room), std::bit_ceil(passes), kClusterBlocks}), true};
}

/// Scratch of decoding: a counter for each item that is split, then the partial results of splits: sums, largest score,
/// total weight.
inline constexpr std::size_t kDecodeCounterBytes = 1024;
static_assert(kDecodeBlocks * sizeof(std::uint32_t) <= kDecodeCounterBytes,
              "items are split only if they are fewer than kDecodeBlocks");
inline std::size_t decode_scratch_bytes(const DecodePlan& plan, std::size_t group, std::size_t head_values) noexcept {
  const std::size_t rows = std::min(group, kDecodeHeads);
  return kDecodeCounterBytes +
         (plan.splits == 1 ? 0 : plan.items * plan.splits * rows * (head_values + 2) * sizeof(float));
}

// ---- arguments and launches

/// The numbers of a CacheShape that kernels need.
struct CacheRows {
  std::size_t head_bytes;  ///< from a head to the next
  std::size_t page_bytes;
  std::uint32_t row_bytes;
  std::uint32_t head_values;
  std::uint32_t page_shift;  ///< rows of a page, as a power of two; of no meaning where sequences have one
};

inline CacheRows cache_rows(const CacheShape& shape) {
  return {.head_bytes = shape.head_bytes(),
          .page_bytes = shape.bytes(),
          .row_bytes = static_cast<std::uint32_t>(shape.row_bytes()),
          .head_values = static_cast<std::uint32_t>(shape.head_values),
          .page_shift = static_cast<std::uint32_t>(std::countr_zero(shape.rows))};
}

/// Where rows lie in the planes of a sequence's head, keys and values alike: rows `first` to `last`, which are in one
/// page or, of sequences that have several, in two that follow each other. Looking a page up is a load; a window does
/// it twice for many rows.
template <bool kPaged>
struct PageWindow {
  IMAGO_HD PageWindow(const CacheRows& rows, const std::uint32_t* pages, std::uint32_t first, std::uint32_t last)
      : row_bytes_(rows.row_bytes) {
    if constexpr (kPaged) {
      const std::uint32_t page = first >> rows.page_shift;
      early_ = offset_of(rows, pages, page);
      late_ = offset_of(rows, pages, last >> rows.page_shift);
      border_ = (page + 1) << rows.page_shift;
    }
  }
  IMAGO_HD std::ptrdiff_t offset(std::uint32_t row) const noexcept {
    const auto within = static_cast<std::ptrdiff_t>(std::size_t{row} * row_bytes_);
    if constexpr (kPaged) return within + (row < border_ ? early_ : late_);
    return within;
  }

 private:
  /// Less the rows of the pages before it.
  IMAGO_HD static std::ptrdiff_t offset_of(const CacheRows& rows, const std::uint32_t* pages, std::uint32_t page) {
    return static_cast<std::ptrdiff_t>(pages[page] * rows.page_bytes) -
           static_cast<std::ptrdiff_t>((std::size_t{page} << rows.page_shift) * rows.row_bytes);
  }

  std::uint32_t row_bytes_, border_ = 0;
  std::ptrdiff_t early_ = 0, late_ = 0;
};

/// Calls run(type, paged) with both as constants.
template <class Run>
void with_cache(CacheType type, bool paged, Run run) {
  const auto with = [&]<CacheType kType>(std::integral_constant<CacheType, kType> constant) {
    if (paged) return run(constant, std::true_type());
    run(constant, std::false_type());
  };
  switch (type) {
    case CacheType::f32: return with(std::integral_constant<CacheType, CacheType::f32>());
    case CacheType::f16: return with(std::integral_constant<CacheType, CacheType::f16>());
    case CacheType::q8_0: return with(std::integral_constant<CacheType, CacheType::q8_0>());
  }
}

/// What happens to queries and keys before attention: norms, where given, and rotation.
struct HeadRotation {
  const float* q_norm = nullptr;  // [head_values]; null: none, or already applied
  const float* k_norm = nullptr;
  float eps = 0;
  const float* rope = nullptr;  // null: none
  std::uint32_t rotary = 0;
  RopePairs pairs = {};
  bool norms_turned = false, norms_values = false;  // as in PlaceArgs
  float growth = 0;
  std::uint32_t growth_period = 1;
};

/// `q_norm`, `k_norm`: the norms that still have to be applied.
inline HeadRotation head_rotation(const PlaceArgs& args, const float* q_norm, const float* k_norm) {
  return {.q_norm = q_norm,
          .k_norm = k_norm,
          .eps = args.norm_eps,
          .rope = args.rope,
          .rotary = static_cast<std::uint32_t>(args.rotary),
          .pairs = args.pairs,
          .norms_turned = args.norms_turned,
          .norms_values = args.norms_values,
          .growth = args.growth,
          .growth_period = static_cast<std::uint32_t>(args.growth_period)};
}

/// The widest head whose keys and values the tiles of attention_decode.cuh and attention_prefill.cuh hold.
inline constexpr std::size_t kMostTileValues = 256;
/// The widest values that a block of attention_wide.cuh sums up: 64 for each of its warps.
inline constexpr std::size_t kMostWideValues = 512;
/// Throws UnsupportedError for head sizes that no kernel supports.
void check_head_values(std::size_t head_values);

/// Arguments of every attention kernel.
struct AttentionWork {
  const float* q;  // [tokens][heads][head_values]
  float* y;
  Int8Out int8;  // quantized output; only for few tokens, and where blocks of 32 columns do not straddle heads
  std::uint32_t tokens, heads, kv_heads, group;
  std::uint32_t window;
  float scale, cap;
  const float* sinks;  // [heads]; null: none
  CacheRows rows;
  const GpuCache* caches;
  const std::int32_t* sequence;
  const std::int32_t* position;
  const std::int32_t* text_end;  // null: none

  IMAGO_HD SeenKeys seen(std::uint32_t token) const noexcept {
    return seen_keys(position[token], text_end == nullptr ? 0 : text_end[token], window);
  }
};

/// Few tokens: see attention_decode.cuh. Heads of a multiple of 8 values up to 256.
struct DecodeWork : AttentionWork {
  std::uint32_t chunks = 1;  // of kDecodeHeads heads or fewer in a group
  bool is_cluster = false;   // the splits of an item form a cluster
  // If k is given, the kernel also rotates queries and stores keys and values in the cache. REQUIRES: tokens of
  // different sequences, one chunk.
  const float* k = nullptr;  // [tokens][kv_heads][head_values]
  const float* v = nullptr;
  HeadRotation rotation = {};
  std::uint32_t* counters = nullptr;  // [items], zeros between launches
  float* partials = nullptr;          // [items][splits][rows][head_values + 2]
};
template <CacheType kType, bool kPaged>
void launch_decode(const DecodeWork& work, const DecodePlan& plan, Stream& stream);

/// Many tokens: see attention_prefill.cuh. The same head sizes.
template <CacheType kType, bool kPaged>
void launch_prefill(const AttentionWork& work, Stream& stream);

}  // namespace imago::kernels::cuda
