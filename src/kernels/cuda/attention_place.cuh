#pragma once

// The step before decoding attention, in its kernel: heads are turned, key and value go into the cache.

#include <cstdint>

#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/head_turn.cuh"

namespace imago::kernels::cuda {

/// The heads that a block puts in place: its queries into shared memory, turned; the token's key and value into the
/// cache, by the block that has its last key. Nobody else reads them there.
template <int kSupers, CacheType kType>
class PlacedHeads {
 public:
  __device__ __forceinline__ PlacedHeads(const DecodeWork& a, std::size_t queries, std::size_t key, unsigned rows)
      : a_(a), queries_(a.q + queries), key_(key), rows_(rows) {}

  /// What no kernel of this step makes.
  __device__ __forceinline__ void fetch_turn(std::int32_t position) { turn_.fetch(a_.turn, position); }

  /// All threads of the block.
  __device__ __forceinline__ void place(const GpuCache& cache, unsigned kv_head, std::int32_t position, bool has_last,
                                        float* shared) {
    const unsigned values = a_.rows.head_values;
    const unsigned jobs = rows_ + (has_last ? 2 : 0);
    FetchedHead<64 * kSupers> heads[2];
    for (unsigned job = warp(); job < jobs; job += 2 * kDecodeWarps) {
      heads[0].fetch(source(job), values);
      if (job + kDecodeWarps < jobs) heads[1].fetch(source(job + kDecodeWarps), values);
      finish(heads[0], job, cache, kv_head, position, shared);
      if (job + kDecodeWarps < jobs) finish(heads[1], job + kDecodeWarps, cache, kv_head, position, shared);
    }
    __syncthreads();
  }
  /// Of `shared`, behind the queries.
  __device__ __forceinline__ const float* key(const float* shared) const {
    return shared + rows_ * a_.rows.head_values;
  }
  __device__ __forceinline__ const float* value(const float* shared) const { return key(shared) + a_.rows.head_values; }

 private:
  __device__ __forceinline__ void finish(const FetchedHead<64 * kSupers>& head, unsigned job, const GpuCache& cache,
                                         unsigned kv_head, std::int32_t position, float* shared) {
    const unsigned values = a_.rows.head_values;
    float* const x = shared + job * values;
    head.put(values, x);
    const bool is_query = job < rows_, is_key = job == rows_;
    if (is_query || is_key) turn_head(a_.turn, values, is_query ? a_.turn.q_norm : a_.turn.k_norm, turn_, x);
    if (is_query) return;
    store_head<kType>(a_.rows, (is_key ? cache.keys : cache.values) + kv_head * a_.rows.head_bytes, position, x);
  }
  static __device__ __forceinline__ unsigned warp() { return threadIdx.x / 32; }
  __device__ __forceinline__ const float* source(unsigned job) const {
    return job < rows_ ? queries_ + job * a_.rows.head_values : (job == rows_ ? a_.k : a_.v) + key_;
  }

  const DecodeWork& a_;
  const float* queries_;
  std::size_t key_;
  unsigned rows_;
  FetchedTurn<64 * kSupers> turn_;
};

}  // namespace imago::kernels::cuda
