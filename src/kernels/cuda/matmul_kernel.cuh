#pragma once

// The kernel that multiplies packed weights of one form with more tokens than a matvec takes, and its launch;
// instances/matmul_*.cu make it for all forms.

#include <cuda_runtime.h>

#include <algorithm>
#include <mutex>

#include "device/cuda/check.h"
#include "kernels/cuda/matmul_decode.cuh"
#include "kernels/cuda/matmul_hopper.cuh"
#include "kernels/cuda/matmul_launch.cuh"
#include "kernels/cuda/matmul_mma.cuh"

namespace imago::kernels::cuda {

/// Products by tensor cores, whichever this chip has.
template <class Decoder, int kN, int kAhead, int kBlocks>
__global__ void __launch_bounds__(kMatMulThreads, kBlocks) matmul_kernel(const __grid_constant__ MatMulArgs args) {
  extern __shared__ std::byte shared_memory[];
  // Swizzled rows are found by their address: stages begin on 1024 bytes.
  std::byte* const memory = shared_memory + (-__cvta_generic_to_shared(shared_memory) & 1023);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  hopper::run_tile<Decoder, kN, kAhead, kBlocks>(args, memory);
#else
  if constexpr (kN <= 128) mma::run_tile<Decoder, kN>(args, memory);  // wider ones are launched on Hopper only
#endif
}

/// Shared memory that a kernel is launched with: as many stages as fit beside its neighbours, or what sums need to
/// leave.
struct SharedMemory {
  std::uint32_t stages;
  std::size_t bytes;
};

template <class Tile>
SharedMemory shared_memory_of(int blocks, int device) {
  int block_limit = 0, all = 0;
  imago::cuda::check(cudaDeviceGetAttribute(&block_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                     "shared memory");
  imago::cuda::check(cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device),
                     "shared memory");
  // 1 KiB is taken by the system, 1 KiB goes to the alignment of stages, the barriers take some more.
  const int room = std::min(block_limit, all / blocks - 1024) - 1024 - 256;
  const int stages = std::clamp(room / Tile::kStageBytes, mma::kStages, hopper::kMaxStages);
  return {static_cast<std::uint32_t>(stages),
          static_cast<std::size_t>(std::max(stages * Tile::kStageBytes, Tile::kSumBytes)) + 1024};
}

template <class Form, int kN, int kAhead, int kBlocks>
void launch_shape(MatMulArgs args, std::uint32_t splits, cudaStream_t stream) {
  using imago::cuda::check;
  using Tile = MatMulTile<kN>;
  constexpr int kDevices = 16;  // asked once for each
  static std::mutex mutex;
  static SharedMemory known[kDevices] = {};
  static int threads[kDevices] = {};
  const auto kernel = matmul_kernel<TensorDecoder<Form>, kN, kAhead, kBlocks>;
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const int slot = device % kDevices;
  {
    const std::lock_guard lock(mutex);
    if (threads[slot] == 0) {
      known[slot] = shared_memory_of<Tile>(kBlocks, device);
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(known[slot].bytes)),
            "shared memory of a product");
      cudaFuncAttributes attributes{};
      check(cudaFuncGetAttributes(&attributes, kernel), "a kernel of products");
      threads[slot] = attributes.maxThreadsPerBlock;  // what it was compiled for: see kMatMulThreads
    }
  }
  args.stages = known[slot].stages;
  const auto pieces = [](std::uint32_t all, std::uint32_t of) { return (all + of - 1) / of; };
  const dim3 grid(pieces(args.x.tokens, kN), pieces(args.rows, args.gated ? Tile::kRows / 2 : Tile::kRows), splits);
  kernel<<<grid, threads[slot], known[slot].bytes, stream>>>(args);
  imago::cuda::check_launch("product by tensor cores");
}

template <class Form>
void launch_matmul(const MatMulArgs& args, MatMulShape shape, std::uint32_t splits, cudaStream_t stream) {
  switch (shape) {
    case MatMulShape::wide: return launch_shape<Form, 256, 1, 1>(args, splits, stream);
    case MatMulShape::square: return launch_shape<Form, 128, 1, 1>(args, splits, stream);
    case MatMulShape::half: return launch_shape<Form, 64, 2, 1>(args, splits, stream);
    case MatMulShape::narrow: return launch_shape<Form, 32, 2, 2>(args, splits, stream);
  }
}

#define IMAGO_MATMUL_INSTANCE(Form) \
  template void launch_matmul<Form>(const MatMulArgs&, MatMulShape, std::uint32_t, cudaStream_t);

}  // namespace imago::kernels::cuda
