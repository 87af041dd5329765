#include "kernels/cuda/latent.h"

#include <string>

#include "imago/error.h"
#include "kernels/cuda/each.cuh"
#include "kernels/cuda/heads.cuh"
#include "kernels/cuda/launch.cuh"

namespace imago::kernels::cuda {

namespace {

constexpr unsigned kWarps = 4;  // warps of a block

struct LatentWork {
  const float* rows;
  const float* q;
  float* latent;
  HeadRotation rotation;  // of `rotary` values
  std::uint32_t heads, plain, rank, tokens;
  const float* norm;
  float eps;
  CacheRows cache_rows;
  const GpuCache* caches;
  const std::int32_t* sequence;
  const std::int32_t* position;
};

/// A warp takes one query of a token, or its row.
template <CacheType kType, bool kPaged>
__global__ void __launch_bounds__(32 * kWarps) place_latent_rows(LatentWork a) {
  __shared__ float room[kWarps][kMostHeadValues];
  wait_for_previous();
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, slots = a.heads + 1;
  const std::size_t index = blockIdx.x * std::size_t{kWarps} + warp;
  if (index >= std::size_t{a.tokens} * slots) return;
  const unsigned token = static_cast<unsigned>(index / slots), slot = static_cast<unsigned>(index % slots);
  const std::int32_t position = a.position[token];
  if (position < 0) return;
  const unsigned rotary = a.rotation.rotary, row_values = a.rank + rotary;
  const bool is_query = slot < a.heads;
  const std::size_t query = std::size_t{token} * a.heads + slot;
  const float* const from =
      is_query ? a.q + query * (a.plain + rotary) + a.plain : a.rows + std::size_t{token} * row_values;
  const unsigned count = is_query ? rotary : row_values;
  float* const x = room[warp];
  for (unsigned i = lane; i < count; i += 32) x[i] = from[i];
  __syncwarp();
  FetchedRotation<kMostHeadValues> turn;
  turn.fetch(a.rotation, position);
  if (!is_query) norm_head(a.rank, a.norm, a.eps, x);
  rotate_head(a.rotation, rotary, HeadKind::key, position, turn, is_query ? x : x + a.rank);
  if (is_query) {
    for (unsigned i = lane; i < rotary; i += 32) a.latent[query * row_values + a.rank + i] = x[i];
    return;
  }
  const GpuCache cache = a.caches[a.sequence == nullptr ? 0 : a.sequence[token]];
  store_head<kType, kPaged>(a.cache_rows, cache.keys, cache.pages, position, x);
}

}  // namespace

void place_latent(const PlaceLatentArgs& args, const TokenPlaces& places, Stream& stream) {
  if (places.tokens == 0) return;
  check_head_values(args.shape.head_values);
  if (args.shape.heads != 1 || args.shape.head_values != args.rank + args.rotary || args.rotary % 2 != 0) {
    throw ShapeError("[attention] rows of " + std::to_string(args.rank) + " values and " + std::to_string(args.rotary) +
                     " that turn do not fit a cache of " + std::to_string(args.shape.heads) + " heads of " +
                     std::to_string(args.shape.head_values));
  }
  const LatentWork work{
      .rows = args.rows,
      .q = args.q,
      .latent = args.latent,
      .rotation = {.rope = args.rope, .rotary = static_cast<std::uint32_t>(args.rotary), .pairs = args.pairs},
      .heads = static_cast<std::uint32_t>(args.heads),
      .plain = static_cast<std::uint32_t>(args.plain),
      .rank = static_cast<std::uint32_t>(args.rank),
      .tokens = static_cast<std::uint32_t>(places.tokens),
      .norm = args.norm,
      .eps = args.eps,
      .cache_rows = cache_rows(args.shape),
      .caches = args.caches,
      .sequence = places.sequence,
      .position = places.position};
  const std::size_t warps = places.tokens * (args.heads + 1);
  const auto blocks = static_cast<unsigned>((warps + kWarps - 1) / kWarps);
  with_cache(args.shape.type, args.paged, [&](auto type, auto paged) {
    launch_overlapped("place latent rows", place_latent_rows<type(), paged()>, blocks, 32 * kWarps, 0, stream, work);
  });
}

void gather_heads(const float* from, std::size_t stride, std::size_t tokens, std::size_t heads, std::size_t cols,
                  float* to, Stream& stream) {
  for_each(tokens * heads * cols, "gather_heads", stream, [=] __device__(std::size_t i) {
    const std::size_t token = i / cols % tokens, head = i / cols / tokens;
    to[i] = from[(token * heads + head) * stride + i % cols];
  });
}

}  // namespace imago::kernels::cuda
