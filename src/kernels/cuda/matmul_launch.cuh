#pragma once

// What the host side of products knows of their kernels.

#include <cuda_runtime_api.h>

#include "kernels/cuda/matmul_tile.cuh"

namespace imago::kernels::cuda {

/// Tokens that a block of 128 rows computes. Each weight is decoded once for all of them: as many as registers hold
/// sums.
enum class MatMulShape : std::uint8_t {
  wide,    ///< 256; Hopper only
  square,  ///< 128
  half,    ///< 64
  narrow,  ///< 32; two blocks a multiprocessor: weights arrive as fast as memory gives them
};

/// Threads of a block, and by that which kernel was compiled for this chip.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr int kMatMulThreads = kConsumers + 128;
#else
inline constexpr int kMatMulThreads = kConsumers;
#endif
inline constexpr int kHopperThreads = kConsumers + 128;

/// Queues the product with gridDim.z = splits. Of `args` everything but `stages` is set. Form: decode.cuh.
template <class Form>
void launch_matmul(const MatMulArgs& args, MatMulShape shape, std::uint32_t splits, cudaStream_t stream);

}  // namespace imago::kernels::cuda
