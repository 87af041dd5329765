#pragma once

// What kernels do to a value that is still in a register before they store it: the epilogue of a product, and the
// quantized version of activations (see Activations).

#include <cstdint>

#include "kernels/cuda/matrix.h"
#include "kernels/cuda/scalar_ops.h"

namespace imago::kernels::cuda {

/// A finished output. `factor`: the other operand of a gated layer, 1 without one; `old`: what y holds if the output is
/// added to it, else 0.
__device__ __forceinline__ float finished(float sum, float bias, float factor, float old, const GpuEpilogue& epilogue) {
  return activation_of(epilogue.activation, sum + bias) * factor * epilogue.scale + old;
}

/// Codes of one block of 32 columns, spread over 32 / kValues neighbouring lanes of a warp with kValues in each, zeros
/// past the last column. Returns the scale of the block. All lanes of the warp call it.
template <int kValues>
__device__ inline BlockScale int8_codes(const float (&values)[kValues], std::int8_t (&codes)[kValues]) {
  static_assert(kValues == 1 || kValues == 2 || kValues == 4 || kValues == 8);
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kValues; ++i) largest = max(largest, magnitude_bits(values[i]));
#pragma unroll
  for (unsigned step = 1; step < 32 / kValues; step *= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, step));
  const BlockScale block = int8_scale(largest);
#pragma unroll
  for (int i = 0; i < kValues; ++i) codes[i] = static_cast<std::int8_t>(int8_code(values[i], block));
  return block;
}

/// Quantizes such a block: each lane writes its codes to q (aligned to kValues bytes), the first lane writes *scales.
/// All lanes of the warp call it; those with `active` false hold zeros and write nothing, and all lanes of a block
/// agree on `active`.
template <int kValues>
__device__ inline void store_quantized(const float (&values)[kValues], bool active, std::int8_t* q,
                                       float2_pod* scales) {
  constexpr unsigned kLanes = 32 / kValues;
  alignas(8) std::int8_t codes[kValues];
  const BlockScale block = int8_codes(values, codes);
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kValues; ++i) sum += codes[i];
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
