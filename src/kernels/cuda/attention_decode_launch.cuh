#pragma once

// The launch of attention_decode.cuh, for the files that instantiate it: one for each type of cache.

#include "device/cuda/check.h"
#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/launch.cuh"

namespace imago::kernels::cuda {

template <int kSupers, CacheType kType>
void launch_decode_of(const DecodeWork& work, const DecodePlan& plan, Stream& stream) {
  const std::size_t rows = std::min<std::size_t>(work.group, kDecodeHeads);
  const std::size_t shared = kDecodeWarps * rows * work.rows.head_values * sizeof(float);
  if (shared > 40 * 1024) {  // beside what the kernel has anyway
    imago::cuda::check(cudaFuncSetAttribute(decode_attention<kSupers, kType>,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
                       "shared memory of attention");
  }
  const dim3 blocks(static_cast<unsigned>(plan.splits), static_cast<unsigned>(plan.units));
  launch_overlapped_cluster("attention of few tokens", decode_attention<kSupers, kType>, blocks, 32 * kDecodeWarps,
                            shared, plan.is_cluster ? static_cast<unsigned>(plan.splits) : 0, stream.handle(), work);
}

template <CacheType kType>
void launch_decode(const DecodeWork& work, const DecodePlan& plan, Stream& stream) {
  const unsigned values = work.rows.head_values;
  if (values <= 64) return launch_decode_of<1, kType>(work, plan, stream);
  if (values <= 128) return launch_decode_of<2, kType>(work, plan, stream);
  launch_decode_of<4, kType>(work, plan, stream);
}

}  // namespace imago::kernels::cuda
