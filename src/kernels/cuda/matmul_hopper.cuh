#pragma once

// Products on Hopper. Two warpgroups decode weights and multiply; one thread of a third keeps the ring of stages filled
// with activations. That thread has a whole warpgroup because registers can only be handed over between warpgroups, and
// the sums need them.
//
// The first part has one function per instruction: barriers in shared memory that count bytes, bulk copies that report
// to them, and products of a warpgroup that run while its threads go on. Only code for sm_90a may call them.

#include <cstdint>

#include "kernels/cuda/matmul_decode.cuh"
#include "kernels/cuda/matmul_tile.cuh"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda::hopper {

// ---- barriers: a phase ends when all arrivals and all announced bytes are in

__device__ __forceinline__ void init_barrier(std::uint64_t* barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

/// Makes barriers visible to the copy engine. A __syncthreads must follow for the other threads.
__device__ __forceinline__ void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void arrive_expecting(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

/// Waits until the phase of this parity is over.
__device__ __forceinline__ void wait(std::uint64_t* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

/// Copies contiguous bytes (16-byte aligned) into shared memory; they count for `barrier`.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, std::uint32_t bytes, std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// ---- products of a warpgroup

/// Describes rows of 128 bytes in shared memory to the tensor cores. The 16-byte vectors of each 8 rows are swizzled
/// (vector i of row r at i ^ r % 8), which avoids bank conflicts, and begin at a multiple of 1024 bytes. Adding 2 to
/// the result moves on by 16 columns.
__device__ __forceinline__ std::uint64_t describe_rows(const void* tile) {
  constexpr std::uint64_t kEightRows = 1024 >> 4;
  constexpr std::uint64_t kSwizzle128 = 1;
  return (shared_address(tile) & 0x3FFFFu) >> 4 | std::uint64_t{1} << 16 | kEightRows << 32 | kSwizzle128 << 62;
}

/// Makes registers written so far visible to the products that follow.
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// Ends a batch of products.
__device__ __forceinline__ void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most `kBatches` batches are running.
template <int kBatches>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kBatches) : "memory");
}

/// Stops the compiler from moving these registers: it does not know that running products write them.
template <int kCount>
__device__ __forceinline__ void hold(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

// Register lists for the instructions below, which name all sums of a product.
#define IMAGO_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define IMAGO_D8(i) IMAGO_D4(i), IMAGO_D4(i + 4)
#define IMAGO_D32(i) IMAGO_D8(i), IMAGO_D8(i + 8), IMAGO_D8(i + 16), IMAGO_D8(i + 24)
#define IMAGO_TEN(t) "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9,"
#define IMAGO_FIRST_TEN "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,"
#define IMAGO_OPERANDS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)

/// d[64 rows][N tokens] += A · Bᵀ over 16 columns. A: 64 rows, in the registers of the warpgroup: thread 4 g + t of
/// warp w has of rows 16 w + g and 16 w + g + 8 (a[0], a[1]) columns 2 t and 2 t + 1, and (a[2], a[3]) 2 t + 8 and 2 t
/// + 9. B: N rows, see describe_rows. d[4 j …]: rows as a[0] (two tokens 8 j + 2 t, + 1), then as a[1].
template <int N>
struct Product;

template <>
struct Product<16> {
  __device__ static __forceinline__ void run(float (&d)[8], const std::uint32_t* a, std::uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, 1, 1, "
        "1, 0;"
        : IMAGO_D8(0)
        : IMAGO_OPERANDS);
  }
};

template <>
struct Product<32> {
  __device__ static __forceinline__ void run(float (&d)[16], const std::uint32_t* a, std::uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" IMAGO_FIRST_TEN
                 "%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, 1, 1, 1, 0;"
                 : IMAGO_D8(0), IMAGO_D8(8)
                 : IMAGO_OPERANDS);
  }
};

template <>
struct Product<64> {
  __device__ static __forceinline__ void run(float (&d)[32], const std::uint32_t* a, std::uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" IMAGO_FIRST_TEN IMAGO_TEN(1)
                     IMAGO_TEN(2) "%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
                 : IMAGO_D32(0)
                 : IMAGO_OPERANDS);
  }
};

template <>
struct Product<128> {
  __device__ static __forceinline__ void run(float (&d)[64], const std::uint32_t* a, std::uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" IMAGO_FIRST_TEN IMAGO_TEN(1) IMAGO_TEN(2)
                     IMAGO_TEN(3) IMAGO_TEN(4) IMAGO_TEN(5) "%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, 1, 1, 1, 0;"
                 : IMAGO_D32(0), IMAGO_D32(32)
                 : IMAGO_OPERANDS);
  }
};

template <>
struct Product<256> {
  __device__ static __forceinline__ void run(float (&d)[128], const std::uint32_t* a, std::uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" IMAGO_FIRST_TEN IMAGO_TEN(1) IMAGO_TEN(2) IMAGO_TEN(3)
            IMAGO_TEN(4) IMAGO_TEN(5) IMAGO_TEN(6) IMAGO_TEN(7) IMAGO_TEN(8) IMAGO_TEN(9) IMAGO_TEN(10)
                IMAGO_TEN(11) "%120,%121,%122,%123,%124,%125,%126,%127}, {%128,%129,%130,%131}, %132, 1, 1, 1, 0;"
        : IMAGO_D32(0), IMAGO_D32(32), IMAGO_D32(64), IMAGO_D32(96)
        : IMAGO_OPERANDS);
  }
};

#undef IMAGO_D4
#undef IMAGO_D8
#undef IMAGO_D32
#undef IMAGO_TEN
#undef IMAGO_FIRST_TEN
#undef IMAGO_OPERANDS

// ---- the kernel

inline constexpr int kThreads = kHopperThreads;
inline constexpr int kMaxStages = 8;

/// Barriers of the ring of stages: `full` when the bytes of a stage have arrived, `empty` when all warps have used
/// them.
struct Pipeline {
  std::uint64_t full[kMaxStages], empty[kMaxStages];
};

/// A position in the ring; the parity changes with each round.
struct Cursor {
  std::uint32_t stage = 0, parity = 0;
  __device__ void next(std::uint32_t stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

/// Copies the activations of chunks [first, last) into the stages. One thread calls it.
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

/// Four products over the columns of one panel, with half of the codes of each thread's two rows.
template <class Decoder, int kN, int kHalf>
__device__ __forceinline__ void multiply_panel(const Planes& planes, float (&sums)[kN / 2],
                                               const typename Decoder::Raw (&raw)[2], std::uint32_t (&a)[16],
                                               const std::byte* panel) {
  std::uint32_t upper[16], lower[16];
  Decoder::decode(planes, raw[0], upper);  // both halves call it; the compiler drops what is not used below
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

template <class Decoder, class Tile, int kAhead>
__device__ __forceinline__ void consume(const MatMulArgs& args, std::byte* memory, Pipeline& pipeline,
                                        std::uint32_t first, std::uint32_t last) {
  constexpr int kN = Tile::kTokens;
  const int thread = threadIdx.x;
  const int lane = thread % 32;
  const int t = lane % 4;
  const int tile_row = thread / 32 * 16 + lane / 4;  // and + 8
  const Planes planes = Tile::planes(args, tile_row);
  const auto cursor = [&](int r) { return RowCursor(planes, Tile::source_row(args, tile_row + 8 * r), 4 * first + t); };
  const RowCursor rows[2] = {cursor(0), cursor(1)};

  // Codes of the next kAhead chunks are being loaded into registers; raw[i] has those of the i-th of each kAhead.
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
  std::uint32_t used = 0;  // the stage of the previous chunk
  for (std::uint32_t round = first; round < last; round += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::uint32_t chunk = round + i;
      if (chunk >= last) break;
      wait(&pipeline.full[at.stage], at.parity);
      const std::byte* const panels = memory + at.stage * Tile::kStageBytes;
      // Two batches of products run at a time. One must end before its registers are overwritten.
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

  asm volatile("bar.sync 1, 256;" ::: "memory");  // both warpgroups are done with the stages
  float* const tile = reinterpret_cast<float*>(memory);
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    const int token = i / 4 * 8 + 2 * t + i % 2;
    tile[token * Tile::kSumStride + tile_row + i / 2 % 2 * 8] = sums[i];
  }
  asm volatile("bar.sync 1, 256;" ::: "memory");
  store_tile<Tile>(args, tile, thread);
}

/// Registers of a consumer thread if `kBlocks` blocks share the 65536 of a multiprocessor and the producer warpgroup
/// keeps 24 a thread.
template <int kBlocks>
inline constexpr int kConsumerRegisters = kBlocks == 1 ? 240 : 104;

template <class Decoder, class Tile, int kAhead, int kBlocks>
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
    if (threadIdx.x == kConsumers) produce<Tile>(args, memory, pipeline, first, last);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters<kBlocks>));
    consume<Decoder, Tile, kAhead>(args, memory, pipeline, first, last);
  }
}

}  // namespace imago::kernels::cuda::hopper
