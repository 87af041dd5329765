#pragma once

// Rows of a cache of keys and values in device memory: their bytes from float32, as kernels::append_to_cache writes
// them.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/rounding.h"

namespace imago::kernels::cuda {

inline constexpr unsigned kQ8Bytes = 34;  ///< a block of q8_0: a float16 and 32 codes

/// 32 values or fewer from `first` on, one a lane, into a row. All lanes of the warp call it; `inside`: the lane has a
/// value.
template <CacheType kType>
__device__ inline void store_cache_values(std::byte* row, unsigned first, float value, bool inside) {
  const unsigned lane = threadIdx.x % 32;
  if constexpr (kType == CacheType::f32) {
    if (inside) reinterpret_cast<float*>(row)[first + lane] = value;
  } else if constexpr (kType == CacheType::f16) {
    if (inside) reinterpret_cast<std::uint16_t*>(row)[first + lane] = half_of_float(value);
  } else {
    const float finite = q8_0_finite(value);
    std::uint32_t largest = magnitude_bits(finite);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, step));
    const BlockScale block = q8_0_scale(largest);
    std::byte* const to = row + first / 32 * kQ8Bytes;
    reinterpret_cast<std::int8_t*>(to)[2 + lane] = static_cast<std::int8_t>(q8_0_code(finite, block));
    if (lane == 0) *reinterpret_cast<std::uint16_t*>(to) = half_of_float(fminf(block.scale, 65504.0f));
  }
}

}  // namespace imago::kernels::cuda
