#pragma once

// The kernel that multiplies packed weights of one device layout with more tokens than a matvec takes, and its launch;
// instances/matmul_*.cu instantiate it. On Hopper it is matmul_hopper.cuh, on other chips the mma.sync code below.

#include <cuda_runtime.h>

#include <algorithm>
#include <mutex>

#include "device/cuda/check.h"
#include "kernels/cuda/matmul_decode.cuh"
#include "kernels/cuda/matmul_hopper.cuh"
#include "kernels/cuda/matmul_tile.cuh"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

// Products by mma.sync, for every chip since Ampere. Eight warps, four over rows and two over tokens, take 32 rows by
// half of the tokens each: activations then pass from shared memory to registers four times instead of eight.
namespace mma {

inline constexpr int kThreads = kConsumers;
inline constexpr int kStages = 3;

__device__ __forceinline__ void copy_async(std::byte* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

/// Four 8 × 8 matrices of 2-byte values; thread l names row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(std::uint32_t (&b)[4], const std::byte* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(shared_address(row)));
}

__device__ __forceinline__ void multiply(float (&d)[4], const std::uint32_t* a, const std::uint32_t* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <class Tile>
__device__ __forceinline__ void load_stage(const MatMulArgs& a, std::byte* memory, std::uint32_t chunk,
                                           std::uint32_t last, std::uint32_t stage) {
  if (chunk < last) {
    std::byte* const to = memory + stage * Tile::kStageBytes;
    for (int i = threadIdx.x; i < Tile::kStageBytes / 16; i += kThreads) {
      const std::uint32_t panel = 2 * chunk + i / (Tile::kStageBytes / 32);
      const std::size_t token = blockIdx.x * Tile::kTokens + i % (Tile::kStageBytes / 32) / 8;
      copy_async(to + i * 16,
                 a.x.values + (static_cast<std::size_t>(panel) * a.x.capacity + token) * kPanel + i % 8 * 8);
    }
  }
  end_copies();
}

template <class Decoder, class Tile>
__device__ __forceinline__ void run_tile(const MatMulArgs& args, std::byte* memory) {
  constexpr int kN = Tile::kTokens;
  constexpr int kPairs = kN / 32;  // of 8 tokens: two such tiles are loaded at once
  const int lane = threadIdx.x % 32;
  const int t = lane % 4;
  const int warp = threadIdx.x / 32;
  const int tile_row = warp % 4 * 32 + lane / 4;  // and + 8, + 16, + 24
  const int first_token = warp / 4 * (kN / 2);
  const Planes planes = Tile::planes(args, tile_row);
  const std::uint32_t first = blockIdx.z * args.split_chunks;
  const std::uint32_t last = min(first + args.split_chunks, args.chunks);
  const auto cursor = [&](int r) { return RowCursor(planes, Tile::source_row(args, tile_row + 8 * r), 4 * first + t); };
  const RowCursor rows[4] = {cursor(0), cursor(1), cursor(2), cursor(3)};
  const auto load = [&](std::uint32_t chunk, int r) {
    return Decoder::load(planes, rows[r], 4 * (chunk - first), 4 * chunk + t);
  };
  // The four 8 × 8 matrices of a load are tokens 0 … 7 and 8 … 15 by columns 0 … 7 and 8 … 15 of a step.
  const int load_token = first_token + lane / 16 * 8 + lane % 8;
  const int load_half = lane / 8 % 2;

  typename Decoder::Raw raw[4];
#pragma unroll
  for (int row = 0; row < 4; ++row) raw[row] = load(first, row);
  for (int i = 0; i < kStages - 1; ++i) load_stage<Tile>(args, memory, first + i, last, i);
  float sums[2][2 * kPairs][4] = {};
  std::uint32_t stage = 0;
  for (std::uint32_t chunk = first; chunk < last; ++chunk) {
    wait_for_copies<kStages - 2>();
    __syncthreads();  // this stage is complete, and all warps are done with the previous one, which is filled next
    load_stage<Tile>(args, memory, chunk + kStages - 1, last, (stage + kStages - 1) % kStages);
    const std::byte* const panels = memory + stage * Tile::kStageBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t pairs[4][16];
#pragma unroll
      for (int row = 0; row < 4; ++row) Decoder::decode(planes, raw[row], pairs[row]);
      const std::byte* const panel = panels + half * (Tile::kStageBytes / 2) + load_token * 128;
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int at = 8 * half + 2 * step;
        const std::uint32_t a[2][4] = {{pairs[0][at], pairs[1][at], pairs[0][at + 1], pairs[1][at + 1]},
                                       {pairs[2][at], pairs[3][at], pairs[2][at + 1], pairs[3][at + 1]}};
#pragma unroll
        for (int n = 0; n < kPairs; ++n) {
          std::uint32_t b[4];
          load_matrices(b, panel + n * 16 * 128 + (2 * step + load_half ^ load_token % 8) * 16);
          multiply(sums[0][2 * n], a[0], b);
          multiply(sums[1][2 * n], a[1], b);
          multiply(sums[0][2 * n + 1], a[0], b + 2);
          multiply(sums[1][2 * n + 1], a[1], b + 2);
        }
      }
    }
    const std::uint32_t next = chunk + 1 < last ? chunk + 1 : chunk;
#pragma unroll
    for (int row = 0; row < 4; ++row) raw[row] = load(next, row);
    stage = (stage + 1) % kStages;
  }
  wait_for_copies<0>();
  __syncthreads();
  float* const tile = reinterpret_cast<float*>(memory);
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < 2 * kPairs; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = first_token + n * 8 + 2 * t + i % 2;
        tile[token * Tile::kSumStride + tile_row + 16 * m + i / 2 * 8] = sums[m][n][i];
      }
    }
  }
  __syncthreads();
  store_tile<Tile>(args, tile, threadIdx.x);
}

}  // namespace mma

/// The product of a tile, with the tensor core instructions of the chip.
template <class Decoder, class Tile, int kAhead, int kBlocks>
__global__ void __launch_bounds__(kMatMulThreads, kBlocks) matmul_kernel(const __grid_constant__ MatMulArgs args) {
  if constexpr (Tile::kExperts) {
    if (args.tiles[blockIdx.x].expert < 0) return;
  }
  extern __shared__ std::byte shared_memory[];
  // The swizzle depends on addresses: stages begin at a multiple of 1024 bytes.
  std::byte* const memory = shared_memory + (-__cvta_generic_to_shared(shared_memory) & 1023);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  hopper::run_tile<Decoder, Tile, kAhead, kBlocks>(args, memory);
#else
  if constexpr (Tile::kTokens <= 128)
    mma::run_tile<Decoder, Tile>(args, memory);  // wider tiles are launched on Hopper only
#endif
}

/// Shared memory of a block: as many stages as fit if `blocks` share a multiprocessor, and at least what the sums take.
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
  // The system takes 1 KiB, the alignment of stages 1 KiB, the barriers some more.
  const int room = std::min(block_limit, all / blocks - 1024) - 1024 - 256;
  const int stages = std::clamp(room / Tile::kStageBytes, mma::kStages, hopper::kMaxStages);
  return {static_cast<std::uint32_t>(stages),
          static_cast<std::size_t>(std::max(stages * Tile::kStageBytes, Tile::kSumBytes)) + 1024};
}

template <class Form, class Tile, int kAhead, int kBlocks>
void launch_tile(MatMulArgs args, std::uint32_t splits, cudaStream_t stream) {
  using imago::cuda::check;
  constexpr int kDevices = 16;  // attributes are queried once for each
  static std::mutex mutex;
  static SharedMemory known[kDevices] = {};
  static int threads[kDevices] = {};
  const auto kernel = matmul_kernel<TensorDecoder<Form>, Tile, kAhead, kBlocks>;
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
      threads[slot] = attributes.maxThreadsPerBlock;  // see kMatMulThreads
    }
  }
  args.stages = known[slot].stages;
  const auto divide_up = [](std::uint32_t all, std::uint32_t of) { return (all + of - 1) / of; };
  const dim3 grid(divide_up(args.x.tokens, Tile::kTokens),
                  divide_up(args.rows, args.gated ? Tile::kRows / 2 : Tile::kRows), splits);
  kernel<<<grid, threads[slot], known[slot].bytes, stream>>>(args);
  imago::cuda::check_launch("product by tensor cores");
}

template <class Form, int kN, int kAhead, int kBlocks>
void launch_shape(const MatMulArgs& args, std::uint32_t splits, cudaStream_t stream) {
  if (args.experts != nullptr) return launch_tile<Form, MatMulTile<kN, true>, kAhead, kBlocks>(args, splits, stream);
  launch_tile<Form, MatMulTile<kN, false>, kAhead, kBlocks>(args, splits, stream);
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
