#pragma once

// The int8 form of activations, made by kernels that have the values in registers anyway. Bit for bit what
// kernels::quantize_tokens gives; the arithmetic is in rounding.h.

#include <cstdint>

#include "kernels/cuda/layout.h"
#include "kernels/cuda/rounding.h"

namespace imago::kernels::cuda {

/// One block of 32 columns spread over 32 / kValues neighbouring lanes of a warp, kValues in each, zeros past the last
/// column. Writes this lane's codes to q (aligned to kValues bytes), and the block's first lane writes *scales. All
/// lanes of the warp call it; those with `active` false hold zeros and write nothing, and all lanes of a block agree on
/// it.
template <int kValues>
__device__ inline void store_int8_form(const float (&values)[kValues], bool active, std::int8_t* q,
                                       float2_pod* scales) {
  static_assert(kValues == 1 || kValues == 2 || kValues == 4 || kValues == 8);
  constexpr unsigned kLanes = 32 / kValues;
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kValues; ++i) largest = max(largest, magnitude_bits(values[i]));
#pragma unroll
  for (unsigned step = 1; step < kLanes; step *= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, step));
  const BlockScale block = int8_scale(largest);
  alignas(8) std::int8_t codes[kValues];
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int code = int8_code(values[i], block);
    codes[i] = static_cast<std::int8_t>(code);
    sum += code;
  }
#pragma unroll
  for (unsigned step = 1; step < kLanes; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (!active) return;
  if constexpr (kValues == 8) {
    *reinterpret_cast<uint2*>(q) = *reinterpret_cast<const uint2*>(codes);
  } else if constexpr (kValues == 4) {
    *reinterpret_cast<std::uint32_t*>(q) = *reinterpret_cast<const std::uint32_t*>(codes);
  } else if constexpr (kValues == 2) {
    *reinterpret_cast<std::uint16_t*>(q) = *reinterpret_cast<const std::uint16_t*>(codes);
  } else {
    *q = codes[0];
  }
  if (threadIdx.x % kLanes == 0) *scales = {block.scale, times(block.scale, static_cast<float>(sum))};
}

}  // namespace imago::kernels::cuda
