#pragma once

// The launch of attention_prefill.cuh, for the files that instantiate it: one for each type of cache.

#include "device/cuda/check.h"
#include "kernels/cuda/attention_prefill.cuh"

namespace imago::kernels::cuda {

template <int kDims, CacheType kType>
void launch_prefill_of(const AttentionWork& work, Stream& stream) {
  using Tile = PrefillTile<kDims>;
  const unsigned chunks = (work.group + kPrefillHeads - 1) / kPrefillHeads;
  const unsigned per_tile = Tile::kRows / std::min(work.group, kPrefillHeads);
  imago::cuda::check(cudaFuncSetAttribute(prefill_attention<kDims, kType>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          Tile::kSharedBytes),
                     "shared memory of attention");
  const dim3 blocks(work.kv_heads * chunks, (work.tokens + per_tile - 1) / per_tile);
  prefill_attention<kDims, kType><<<blocks, 32 * Tile::kWarps, Tile::kSharedBytes, stream.handle()>>>(work, chunks);
  imago::cuda::check_launch("attention of many tokens");
}

template <CacheType kType>
void launch_prefill(const AttentionWork& work, Stream& stream) {
  const unsigned values = work.rows.head_values;
  if (values <= 64) return launch_prefill_of<64, kType>(work, stream);
  if (values <= 128) return launch_prefill_of<128, kType>(work, stream);
  launch_prefill_of<256, kType>(work, stream);
}

}  // namespace imago::kernels::cuda
