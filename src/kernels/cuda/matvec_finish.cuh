#pragma once

// The end of a product of few tokens, and sums over warps on the way there.

#include <cstdint>

#include "kernels/cuda/matvec.h"
#include "kernels/cuda/scalar_ops.h"

namespace imago::kernels::cuda {

/// What comes of a row's sum; of two, those of the gate and of `up`, if the product is gated.
__device__ __forceinline__ void store_result(const MatVecProduct& p, std::uint32_t token, std::uint32_t row, float gate,
                                             float up) {
  float value = activation_of(p.activation, p.bias != nullptr ? gate + p.bias[row] : gate);
  if (p.gated) value *= up;
  float* y = p.y + static_cast<std::size_t>(token) * p.y_stride + row;
  *y = p.accumulate ? value * p.scale + *y : value * p.scale;
}

/// Sums kCount values over the lanes of a warp: lane i ends with the total of value i / (32 / kCount). At each step
/// lanes give away half of their values, so there are kCount + 4 exchanges or so and not 5 · kCount.
template <int kCount>
__device__ __forceinline__ float total_of(float (&values)[kCount], std::uint32_t lane) {
  static_assert(kCount <= 32 && (kCount & (kCount - 1)) == 0);
  int mask = 16;
#pragma unroll
  for (int count = kCount; count > 1; count /= 2, mask /= 2) {
    const bool upper = (lane & mask) != 0;
#pragma unroll
    for (int i = 0; i < count / 2; ++i) {
      const float kept = upper ? values[i + count / 2] : values[i];
      const float given = upper ? values[i] : values[i + count / 2];
      values[i] = kept + __shfl_xor_sync(~0u, given, mask);
    }
  }
#pragma unroll
  for (int m = 16 / kCount; m > 0; m /= 2) values[0] += __shfl_xor_sync(~0u, values[0], m);
  return values[0];
}

}  // namespace imago::kernels::cuda
