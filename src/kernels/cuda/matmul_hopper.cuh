#pragma once

// Products on Hopper: two warpgroups decode and multiply, one thread of a third keeps the tiles of activations coming.
// That one is a whole warpgroup because registers can only be handed over between warpgroups, and the sums need them.

#include "kernels/cuda/matmul_decode.cuh"
#include "kernels/cuda/matmul_launch.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace imago::kernels::cuda::hopper {

inline constexpr int kThreads = kHopperThreads;
inline constexpr int kMaxStages = 8;

/// Tiles of activations on their way: `full` when a stage's bytes are there, `empty` when all warps have used them.
struct Pipeline {
  std::uint64_t full[kMaxStages], empty[kMaxStages];
};

/// Walks over the stages again and again; the parity changes with each round.
struct Cursor {
  std::uint32_t stage = 0, parity = 0;
  __device__ void next(std::uint32_t stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

template <class Tile>
__device__ __forceinline__ void produce(const MatMulArgs& a, std::byte* memory, Pipeline& pipeline, std::uint32_t first,
                                        std::uint32_t last) {
  Cursor at;
  const std::size_t panel = static_cast<std::size_t>(a.x.capacity) * kPanel;
  const std::uint16_t* from = a.x.values + 2 * first * panel + blockIdx.x * Tile::kTokens * kPanel;
  for (std::uint32_t chunk = first; chunk < last; ++chunk, from += 2 * panel, at.next(a.stages)) {
    wait(&pipeline.empty[at.stage], at.parity ^ 1);
    arrive_expecting(&pipeline.full[at.stage], Tile::kStageBytes);
    std::byte* const to = memory + at.stage * Tile::kStageBytes;
    copy_bulk(to, from, Tile::kStageBytes / 2, &pipeline.full[at.stage]);
    copy_bulk(to + Tile::kStageBytes / 2, from + panel, Tile::kStageBytes / 2, &pipeline.full[at.stage]);
  }
}

/// Four products, the columns of one panel, with half of the codes of each thread's two rows.
template <class Decoder, int kN, int kHalf>
__device__ __forceinline__ void multiply_panel(const Planes& planes, float (&sums)[kN / 2],
                                               const typename Decoder::Raw (&raw)[2], std::uint32_t (&a)[16],
                                               const std::byte* panel) {
  std::uint32_t upper[16], lower[16];
  Decoder::decode(planes, raw[0], upper);  // both halves call this; what is not used below is never computed
  Decoder::decode(planes, raw[1], lower);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    a[4 * step] = upper[8 * kHalf + 2 * step];
    a[4 * step + 1] = lower[8 * kHalf + 2 * step];
    a[4 * step + 2] = upper[8 * kHalf + 2 * step + 1];
    a[4 * step + 3] = lower[8 * kHalf + 2 * step + 1];
  }
  const std::uint64_t b = describe_rows(panel);
  products_begin();
#pragma unroll
  for (int step = 0; step < 4; ++step) Product<kN>::run(sums, a + 4 * step, b + 2 * step);
  products_end();
}

template <class Decoder, int kN, int kAhead>
__device__ __forceinline__ void consume(const MatMulArgs& args, std::byte* memory, Pipeline& pipeline,
                                        std::uint32_t first, std::uint32_t last) {
  using Tile = MatMulTile<kN>;
  const int thread = threadIdx.x;
  const int lane = thread % 32;
  const int t = lane % 4;
  const int tile_row = thread / 32 * 16 + lane / 4;  // and + 8
  const Planes planes = Tile::planes(args, tile_row);
  const auto cursor = [&](int r) { return RowCursor(planes, Tile::source_row(args, tile_row + 8 * r), 4 * first + t); };
  const RowCursor rows[2] = {cursor(0), cursor(1)};

  // Codes of the next chunks are on their way in registers: raw[i] has those of the i-th chunk of each kAhead.
  typename Decoder::Raw raw[kAhead][2];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const std::uint32_t chunk = min(first + i, last - 1);
#pragma unroll
    for (int r = 0; r < 2; ++r) raw[i][r] = Decoder::load(planes, rows[r], 4 * (chunk - first), 4 * chunk + t);
  }
  float sums[kN / 2] = {};
  std::uint32_t a[2][16];
  Cursor at;
  std::uint32_t used = 0;  // the stage of the chunk before
  for (std::uint32_t round = first; round < last; round += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::uint32_t chunk = round + i;
      if (chunk >= last) break;
      wait(&pipeline.full[at.stage], at.parity);
      const std::byte* const panels = memory + at.stage * Tile::kStageBytes;
      // Two batches of products are in the air; before registers of one are decoded anew, it must have landed.
      products_wait<1>();
      multiply_panel<Decoder, kN, 0>(planes, sums, raw[i], a[0], panels);
      products_wait<1>();
      if (chunk != first && lane == 0) arrive(&pipeline.empty[used]);
      multiply_panel<Decoder, kN, 1>(planes, sums, raw[i], a[1], panels + Tile::kStageBytes / 2);
      const std::uint32_t next = min(chunk + kAhead, last - 1);
#pragma unroll
      for (int r = 0; r < 2; ++r) raw[i][r] = Decoder::load(planes, rows[r], 4 * (next - first), 4 * next + t);
      used = at.stage;
      at.next(args.stages);
    }
  }
  products_wait<0>();
  hold(sums);

  asm volatile("bar.sync 1, 256;" ::: "memory");  // the last products of both warpgroups have read their tiles
  float* const tile = reinterpret_cast<float*>(memory);
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    const int token = i / 4 * 8 + 2 * t + i % 2;
    tile[token * Tile::kSumStride + tile_row + i / 2 % 2 * 8] = sums[i];
  }
  asm volatile("bar.sync 1, 256;" ::: "memory");
  store_tile<Tile>(args, tile, thread);
}

/// Registers of a thread when `kBlocks` blocks share a multiprocessor's 65536: what is left by the third
/// warpgroup's 24.
template <int kBlocks>
inline constexpr int kConsumerRegisters = kBlocks == 1 ? 240 : 104;

template <class Decoder, int kN, int kAhead, int kBlocks>
__device__ __forceinline__ void run_tile(const MatMulArgs& args, std::byte* memory) {
  __shared__ Pipeline pipeline;
  if (threadIdx.x == 0) {
    for (std::uint32_t i = 0; i < args.stages; ++i) {
      init_barrier(&pipeline.full[i], 1);
      init_barrier(&pipeline.empty[i], kConsumers / 32);
    }
    barriers_ready();
  }
  __syncthreads();
  const std::uint32_t first = blockIdx.z * args.split_chunks;
  const std::uint32_t last = min(first + args.split_chunks, args.chunks);
  if (threadIdx.x >= kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == kConsumers) produce<MatMulTile<kN>>(args, memory, pipeline, first, last);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters<kBlocks>));
    consume<Decoder, kN, kAhead>(args, memory, pipeline, first, last);
  }
}

}  // namespace imago::kernels::cuda::hopper
