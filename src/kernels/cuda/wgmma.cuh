#pragma once

// The tensor cores of Hopper and the machinery that feeds them, one function per instruction: barriers in shared memory
// that count bytes, bulk copies that report to them, and products of a warpgroup (four warps) that run while its
// threads go on. Only code for sm_90a may call them.

#include <cstdint>

#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda::hopper {

// ---- barriers: a phase ends when all have arrived and all announced bytes are there

__device__ __forceinline__ void init_barrier(std::uint64_t* barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

/// Makes barriers visible to the copy engine; then a __syncthreads for the other threads.
__device__ __forceinline__ void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void arrive_expecting(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

/// Until the phase of this parity is over.
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

/// Copies a contiguous piece (16-byte aligned) into shared memory; its bytes count for `barrier`.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, std::uint32_t bytes, std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// ---- products of a warpgroup

/// Describes rows of 128 bytes in shared memory, 16-byte pieces exchanged within each 8 rows (piece i of row r at i ^ r
/// % 8), to the tensor cores: the layout without bank conflicts. The 8 rows begin on 1024 bytes. 16 columns further:
/// + 2.
__device__ __forceinline__ std::uint64_t describe_rows(const void* tile) {
  constexpr std::uint64_t kEightRows = 1024 >> 4;
  constexpr std::uint64_t kSwizzle128 = 1;
  return (shared_address(tile) & 0x3FFFFu) >> 4 | std::uint64_t{1} << 16 | kEightRows << 32 | kSwizzle128 << 62;
}

/// Registers written so far are seen by the products that follow.
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// The products since the last call are one batch.
__device__ __forceinline__ void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Until at most `kBatches` batches are still running.
template <int kBatches>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kBatches) : "memory");
}

/// The compiler keeps these registers in place here: it does not know that products still write them.
template <int kCount>
__device__ __forceinline__ void hold(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

// Lists of registers for the instructions below: the assembler takes all of a product's sums by name.
#define IMAGO_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define IMAGO_D8(i) IMAGO_D4(i), IMAGO_D4(i + 4)
#define IMAGO_D32(i) IMAGO_D8(i), IMAGO_D8(i + 8), IMAGO_D8(i + 16), IMAGO_D8(i + 24)
#define IMAGO_TEN(t) "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9,"
#define IMAGO_FIRST_TEN "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,"
#define IMAGO_OPERANDS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)

/// d[64 rows][N tokens] += A · Bᵀ over 16 columns. A: 64 rows, in the registers of the warpgroup: thread 4 g + t of
/// warp w has of rows 16 w + g and 16 w + g + 8 (a[0], a[1]) columns 2 t and 2 t + 1, and (a[2], a[3]) 2 t + 8 and 2 t
/// + 9. B: N rows as describe_rows says. d[4 j …]: rows as a[0] (two tokens 8 j + 2 t, + 1), then as a[1].
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

}  // namespace imago::kernels::cuda::hopper
