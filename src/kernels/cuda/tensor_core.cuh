#pragma once

// The tensor cores' product of 16×16 and 16×8 tiles of float16, summed in float32. Lane = 4 · g + c holds
//   a: rows g and g + 8, columns 2c, 2c + 1 (a[0], a[1]) and those + 8 (a[2], a[3])
//   b: column g, rows 2c, 2c + 1 (b0) and those + 8 (b1)
//   d: rows g (d[0], d[1]) and g + 8 (d[2], d[3]), columns 2c and 2c + 1

#include <cstdint>

#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

__device__ __forceinline__ void multiply_add(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Four 8×8 tiles of 16-bit values from shared memory; lane l gives the address of row l % 8 of tile l / 8.
__device__ __forceinline__ void load_tiles(std::uint32_t (&r)[4], std::uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address)
               : "memory");
}

/// Likewise, each tile turned over.
__device__ __forceinline__ void load_tiles_transposed(std::uint32_t (&r)[4], std::uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address)
               : "memory");
}

/// 16 bytes from global to shared memory behind the thread's back, zeros if not `inside`.
__device__ __forceinline__ void copy_16(std::uint32_t shared_address, const void* from, bool inside) {
  const int bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address), "l"(from), "r"(bytes) : "memory");
}

/// 2^x within 2 units of the last place; 0 for -infinity.
__device__ __forceinline__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// tanh within 3e-7 of its value's scale, of few instructions.
__device__ __forceinline__ float quick_tanh(float x) {
  return 1.0f - __fdividef(2.0f, power_of_2(x * 2.8853900818f) + 1.0f);
}

}  // namespace imago::kernels::cuda
