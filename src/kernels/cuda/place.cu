// Queries, keys and values on their way into attention: norms of heads, rotation, the cache. A warp takes one head of
// one token.

#include "kernels/cuda/attention.h"
#include "kernels/cuda/head_turn.cuh"
#include "kernels/cuda/launch.cuh"

namespace imago::kernels::cuda {

namespace {

constexpr unsigned kWarps = 4;  // of a block

struct Work {
  float* q;
  const float* k;
  const float* v;
  HeadTurn turn;
  std::uint32_t heads, kv_heads, tokens;
  CacheRows rows;
  const GpuCache* caches;
  const std::int32_t* sequence;
  const std::int32_t* position;
};

template <CacheType kType>
__global__ void __launch_bounds__(32 * kWarps) place_heads(Work a) {
  __shared__ float room[kWarps][kMostHeadValues];
  wait_for_previous();
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned slots = a.heads + 2 * a.kv_heads;  // of a token: its queries, its keys, its values
  const std::size_t index = blockIdx.x * std::size_t{kWarps} + warp;
  if (index >= std::size_t{a.tokens} * slots) return;
  const unsigned token = static_cast<unsigned>(index / slots), slot = static_cast<unsigned>(index % slots);
  const std::int32_t position = a.position[token];
  const unsigned values = a.rows.head_values;
  const bool is_query = slot < a.heads, is_key = !is_query && slot < a.heads + a.kv_heads;
  const unsigned head = is_query ? slot : is_key ? slot - a.heads : slot - a.heads - a.kv_heads;
  const std::size_t from = (std::size_t{token} * (is_query ? a.heads : a.kv_heads) + head) * values;
  const float* const source = (is_query ? a.q : is_key ? a.k : a.v) + from;
  float* const x = room[warp];
  FetchedHead<kMostHeadValues> fetched;
  fetched.fetch(source, values);
  if (position < 0) return;
  FetchedTurn<kMostHeadValues> turn;
  if (is_query || is_key) turn.fetch(a.turn, position);
  fetched.put(values, x);
  if (is_query || is_key) turn_head(a.turn, values, is_query ? a.turn.q_norm : a.turn.k_norm, turn, x);

  if (is_query) {
    for (unsigned i = lane; i < values; i += 32) a.q[from + i] = x[i];
    return;
  }
  const GpuCache cache = a.caches[a.sequence == nullptr ? 0 : a.sequence[token]];
  store_head<kType>(a.rows, (is_key ? cache.keys : cache.values) + head * a.rows.head_bytes, position, x);
}

/// A norm over whole rows goes before, by itself: no warp sees a row. Returns the norm that is left to do.
const float* norm_rows_first(float* x, const float* weight, std::size_t norm_cols, std::size_t heads,
                             const PlaceArgs& args, std::size_t tokens, Stream& stream) {
  if (weight == nullptr || norm_cols == args.shape.head_values) return weight;
  norm({.x = x,
        .weight = weight,
        .y = x,
        .rows = tokens * heads * args.shape.head_values / norm_cols,
        .cols = norm_cols,
        .eps = args.norm_eps},
       stream);
  return nullptr;
}

}  // namespace

void place(const PlaceArgs& args, const TokenPlaces& places, Stream& stream) {
  if (places.tokens == 0) return;
  const CacheShape& shape = args.shape;
  check_head_values(shape.head_values);
  const float* const q_norm =
      norm_rows_first(args.q, args.q_norm, args.q_norm_cols, args.heads, args, places.tokens, stream);
  const float* const k_norm =
      norm_rows_first(args.k, args.k_norm, args.k_norm_cols, shape.heads, args, places.tokens, stream);
  const Work work{.q = args.q,
                  .k = args.k,
                  .v = args.v,
                  .turn = head_turn(args, q_norm, k_norm),
                  .heads = static_cast<std::uint32_t>(args.heads),
                  .kv_heads = static_cast<std::uint32_t>(shape.heads),
                  .tokens = static_cast<std::uint32_t>(places.tokens),
                  .rows = cache_rows(shape),
                  .caches = args.caches,
                  .sequence = places.sequence,
                  .position = places.position};
  const std::size_t warps = places.tokens * (args.heads + 2 * shape.heads);
  const auto blocks = static_cast<unsigned>((warps + kWarps - 1) / kWarps);
  switch (shape.type) {
    case CacheType::f32:
      return launch_overlapped("place", place_heads<CacheType::f32>, blocks, 32 * kWarps, 0, stream, work);
    case CacheType::f16:
      return launch_overlapped("place", place_heads<CacheType::f16>, blocks, 32 * kWarps, 0, stream, work);
    case CacheType::q8_0:
      return launch_overlapped("place", place_heads<CacheType::q8_0>, blocks, 32 * kWarps, 0, stream, work);
  }
}

}  // namespace imago::kernels::cuda
