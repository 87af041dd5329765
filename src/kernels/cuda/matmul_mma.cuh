#pragma once

// Products by mma.sync, for every chip since Ampere: eight warps, four over rows and two over tokens, each 32 rows by
// half of the tokens, so that a tile of activations passes from shared memory to registers four times and not eight.

#include "kernels/cuda/matmul_decode.cuh"
#include "kernels/cuda/matmul_tile.cuh"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda::mma {

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

template <class Decoder, int kN>
__device__ __forceinline__ void run_tile(const MatMulArgs& args, std::byte* memory) {
  using Tile = MatMulTile<kN>;
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
  // Of the four matrices that a thread helps to load: tokens 0 … 7 and 8 … 15, columns 0 … 7 and 8 … 15 of a step.
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
    __syncthreads();  // this stage is there for all, and all are done with the one before, which is filled next
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

}  // namespace imago::kernels::cuda::mma
