#pragma once

// Attention over a cache in device memory.

#include <cstddef>
#include <cstdint>

#include "device/cuda/stream.h"
#include "kernels/attention.h"
#include "kernels/cuda/ops.h"

namespace imago::kernels::cuda {

/// The widest head: a compressed key of 512 values with 64 that turn.
inline constexpr std::size_t kMostHeadValues = 576;

/// One sequence of a batch: the cache of one layer, laid out as CacheShape says ([heads][rows][head_values]).
struct alignas(16) GpuCache {
  std::byte* keys;
  std::byte* values;
  const std::uint32_t* pages = nullptr;  ///< of the sequence; not read unless `paged`
};

/// Sequences and positions of the tokens of a batch. The arrays are in device memory, so that a recorded graph reads
/// current values: token t belongs to cache `sequence[t]`, at `position[t]`. Tokens at negative positions are skipped.
struct TokenPlaces {
  const std::int32_t* sequence;  ///< null: all of them in cache 0
  const std::int32_t* position;
  std::size_t tokens;
  std::size_t longest;  ///< the largest position: determines how much work is launched
  /// All tokens belong to different sequences: they are decoded one by one, however many there are.
  bool separate = false;
  /// One past the last position of each token's text, which it sees all of, or a window on both sides of its own
  /// position; null: tokens see the keys up to their own.
  const std::int32_t* text_end = nullptr;
};

/// Applies norms (where given) and the rotation of their positions to queries and keys, and stores keys and values in
/// the caches, which are aligned to 16 bytes. q is [tokens][heads][head_values] in place; k and v are
/// [tokens][kv_heads][head_values], k is undefined afterwards. `rope` is a table [positions][rotary] of rotary/2
/// cosines, then sines (kernels::RopeTable); null: no rotation. A norm weight of `q_norm_cols` values: head_values, or
/// heads · head_values for norms over the whole row. Without k and v there are queries only: the caches have the keys.
/// v may be k: values are then the keys before norm and rotation, whose norm must be one of heads.
struct PlaceArgs {
  float* q;
  float* k;
  const float* v;
  std::size_t heads;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  std::size_t q_norm_cols = 0, k_norm_cols = 0;
  float norm_eps = 0;
  bool norms_turned = false;  ///< norms of heads come after the rotation
  bool norms_values = false;  ///< heads of values are normed too, without a weight
  /// Queries are multiplied by 1 + growth · ln(1 + floor(position / growth_period)); 0: they are not.
  float growth = 0;
  std::size_t growth_period = 1;
  const float* rope = nullptr;
  std::size_t rotary = 0;
  RopePairs pairs = {};
  CacheShape shape;
  const GpuCache* caches;  ///< in device memory, one per sequence of the batch
  bool paged = false;      ///< false: each sequence has page 0 alone
};
void place(const PlaceArgs& args, const TokenPlaces& places, Stream& stream);

/// y[token][head] over the keys up to the token's own position, the last `window` of them if that is not 0, or over
/// those of its text, or `window` / 2 on both sides, if TokenPlaces::text_end is given. y is [tokens][heads]
/// [head_values], may be q, and is also quantized where int8 is given. Few tokens: split over keys and combined, exact
/// to 22 bits; many tokens, and few with heads of more than 256 values: tiles of queries on tensor cores in half
/// precision, scores and sums in float32. Throws UnsupportedError for heads of more than kMostHeadValues values.
///
/// `scratch` has attention_scratch_bytes for the longest position and the most tokens it serves, holds zeros before its
/// first use and then belongs to attention on one stream, whose blocks count themselves in it.
struct AttentionArgs {
  const float* q;
  float* y;
  Int8Out int8 = {};
  std::size_t heads;
  std::size_t window = 0;
  AttentionOptions options;
  const float* sinks = nullptr;  ///< AttentionOptions::sinks, in device memory; null: none
  CacheShape shape;
  const GpuCache* caches;
  bool paged = false;  ///< as in PlaceArgs
  std::byte* scratch;
  bool exact = false;  ///< float32 products throughout
  /// Values are the first so many of their keys' (latent attention): caches have the same address for both, and the
  /// other values of y are undefined. 0: values are rows of their own.
  std::size_t shared_values = 0;
};
/// `place`, then `attention`; in one launch if tokens do not see each other, such as the single token of a step. q and
/// k are undefined afterwards.
void place_and_attend(const PlaceArgs& place_args, const AttentionArgs& args, const TokenPlaces& places,
                      Stream& stream);
std::size_t attention_scratch_bytes(const CacheShape& shape, std::size_t heads, const TokenPlaces& places);
void attention(const AttentionArgs& args, const TokenPlaces& places, Stream& stream);

}  // namespace imago::kernels::cuda
