#pragma once

// What latent attention does on the GPU around attention itself (backend/program.h, LatentAttend).

#include <cstddef>

#include "kernels/cuda/attention.h"

namespace imago::kernels::cuda {

/// Norms the first `rank` values of a row, turns the `rotary` that follow and stores the row in the cache, the keys of
/// its only head; turns the last `rotary` values of queries, [tokens][heads][plain + rotary], and writes them after the
/// first `rank` values of `latent`, [tokens][heads][rank + rotary]. Tokens at negative positions are skipped.
struct PlaceLatentArgs {
  const float* rows;  ///< [tokens][rank + rotary]
  const float* q;
  float* latent;
  std::size_t heads, plain, rotary, rank;
  const float* norm;  ///< [rank]
  float eps;
  const float* rope;  ///< [positions][rotary], as in PlaceArgs
  RopePairs pairs;
  CacheShape shape;  ///< one head of rank + rotary values
  const GpuCache* caches;
  bool paged = false;
};
void place_latent(const PlaceLatentArgs& args, const TokenPlaces& places, Stream& stream);

/// The first `cols` values of each head, rows of [tokens][heads] `stride` apart, as [heads][tokens][cols].
void gather_heads(const float* from, std::size_t stride, std::size_t tokens, std::size_t heads, std::size_t cols,
                  float* to, Stream& stream);

}  // namespace imago::kernels::cuda
