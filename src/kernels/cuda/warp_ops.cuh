#pragma once

// Single instructions that C++ cannot express: asynchronous copies, shared memory by its own addresses, products of
// tensor cores, waiting for the previous kernel; and sums and maxima over the threads of a warp or a block. Tests run
// kernels on the host with the instructions of tests/emulated_gpu/emulated_gpu.h.

#ifdef __CUDACC__

#include <cstddef>
#include <cstdint>

namespace imago::kernels::cuda {

// ---- values the compiler must not recompute

/// Keeps a number or an address in a register from this point on, instead of recomputing it at each use.
__device__ __forceinline__ void keep(std::uint32_t& number) { asm volatile("" : "+r"(number)); }
template <class T>
__device__ __forceinline__ void keep(const T*& address) {
  asm volatile("" : "+l"(address));
}

// ---- shared memory, by 32-bit shared addresses instead of generic pointers

__device__ __forceinline__ std::uint32_t shared_address(const void* memory) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
}

template <int kWords>
__device__ __forceinline__ void load_shared(std::uint32_t address, std::uint32_t* to) {
  if constexpr (kWords == 1) {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(to[0]) : "r"(address));
  } else if constexpr (kWords == 2) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(address));
  } else {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(to[i]), "=r"(to[i + 1]), "=r"(to[i + 2]), "=r"(to[i + 3])
                   : "r"(address + 4 * i));
    }
  }
}
/// 1, 2 or 4 bytes.
template <int kBytes>
__device__ __forceinline__ std::uint32_t load_shared_small(std::uint32_t address) {
  static_assert(kBytes == 1 || kBytes == 2 || kBytes == 4);
  std::uint32_t value = 0;
  if constexpr (kBytes == 1) asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(address));
  if constexpr (kBytes == 2) asm volatile("ld.shared.u16 %0, [%1];" : "=r"(value) : "r"(address));
  if constexpr (kBytes == 4) load_shared<1>(address, &value);
  return value;
}

__device__ __forceinline__ void store_shared(std::uint32_t address, std::uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t address, std::uint32_t first, std::uint32_t second) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(first), "r"(second) : "memory");
}

// ---- asynchronous copies from global to shared memory

template <int kBytes>
__device__ __forceinline__ void copy_async(std::uint32_t to, const std::byte* from) {
  if constexpr (kBytes == 16) {  // past the L1
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes) : "memory");
  }
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most the last kLeft committed groups of copies of this thread are pending.
template <int kLeft>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// ---- tensor cores: products of bytes, and of float16

/// c += a · b for 16×32 and 32×8 bytes (PTX m16n8k32); `a` is signed or not, `b` is signed.
template <bool kSigned>
__device__ __forceinline__ void multiply_tile(std::int32_t (&c)[4], const std::uint32_t (&a)[4],
                                              const std::uint32_t (&b)[2]) {
  if constexpr (kSigned) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

/// The same with `a` signed, and `b` signed or not.
template <bool kSigned>
__device__ __forceinline__ void multiply_tokens(std::int32_t (&c)[4], const std::uint32_t (&a)[4],
                                                const std::uint32_t (&b)[2]) {
  if constexpr (kSigned) {
    multiply_tile<true>(c, a, b);
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

// Products of 16×16 and 16×8 tiles of float16, summed in float32. Lane 4 · g + c holds
//   a: rows g and g + 8, columns 2c, 2c + 1 (a[0], a[1]) and those + 8 (a[2], a[3])
//   b: column g, rows 2c, 2c + 1 (b0) and those + 8 (b1)
//   d: rows g (d[0], d[1]) and g + 8 (d[2], d[3]), columns 2c and 2c + 1

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

/// The same, with each tile transposed.
__device__ __forceinline__ void load_tiles_transposed(std::uint32_t (&r)[4], std::uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address)
               : "memory");
}

/// Copies 16 bytes from global to shared memory asynchronously; writes zeros if not `inside`.
__device__ __forceinline__ void copy_16(std::uint32_t shared_address, const void* from, bool inside) {
  const int bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address), "l"(from), "r"(bytes) : "memory");
}

/// 2^x with an error of up to 2 ulp; 0 for -infinity.
__device__ __forceinline__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// tanh in a few instructions, with an absolute error below 3e-7.
__device__ __forceinline__ float quick_tanh(float x) {
  return 1.0f - __fdividef(2.0f, power_of_2(x * 2.8853900818f) + 1.0f);
}

// ---- overlapped kernels (see launch.cuh)

/// Lets the next kernel start: its blocks may be scheduled once all blocks of this kernel have called it.
__device__ __forceinline__ void let_next_in() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits for the previous kernel of the stream. All threads of an overlapped kernel call it before they read what
/// earlier kernels wrote and before they write anything. What no kernel changes, such as weights, may be read before.
__device__ __forceinline__ void wait_for_previous() {
  let_next_in();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace imago::kernels::cuda

#endif

namespace imago::kernels::cuda {

// ---- sums and maxima over threads

template <class T>
__device__ inline T warp_sum(T value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

__device__ inline float warp_max(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  return value;
}

/// `combine` over the threads of a block that share threadIdx.y; all of them get the result. blockDim.x is 32, or
/// blockDim.y is 1. `room` has 33 places in shared memory.
template <class T, class Combine>
__device__ inline T row_reduce(T value, T nothing, T* room, Combine combine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(~0u, value, step));
  if (blockDim.x == 32) return value;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  __syncthreads();  // what an earlier reduction left in `room` has been read
  if (lane == 0) room[warp] = value;
  __syncthreads();
  value = lane < warps ? room[lane] : nothing;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(~0u, value, step));
  return value;
}

__device__ inline float row_sum(float value, float* room) {
  return row_reduce(value, 0.0f, room, [](float a, float b) { return a + b; });
}

__device__ inline float row_max(float value, float* room) {
  return row_reduce(value, -__int_as_float(0x7F800000), room, [](float a, float b) { return fmaxf(a, b); });
}

}  // namespace imago::kernels::cuda
