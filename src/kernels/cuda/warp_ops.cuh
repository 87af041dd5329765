#pragma once

// What a thread does by single instructions that C++ has no words for: asynchronous copies, shared memory by its own
// addresses, tiles of tensor cores, and waiting for the kernel before. Where there is no GPU, tests run kernels on the
// host: emulated_ops.h has the same functions there.

#ifndef __CUDACC__
#include "kernels/cuda/emulated_ops.h"
#else

#include <cstddef>
#include <cstdint>

namespace imago::kernels::cuda {

// ---- what the compiler would work out time and again

/// A number or an address that is kept from here on.
__device__ __forceinline__ void keep(std::uint32_t& number) { asm volatile("" : "+r"(number)); }
template <class T>
__device__ __forceinline__ void keep(const T*& address) {
  asm volatile("" : "+l"(address));
}

// ---- shared memory, by addresses of its own instead of ordinary pointers

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

// ---- copies to it that a thread does not wait for

template <int kBytes>
__device__ __forceinline__ void copy_async(std::uint32_t to, const std::byte* from) {
  if constexpr (kBytes == 16) {  // past the L1
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes) : "memory");
  }
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until all but the last kLeft groups of copies of this thread are done.
template <int kLeft>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// ---- tensor cores

/// c + a · b, of 16 rows, 8 columns and 32 bytes between, as PTX lays m16n8k32 out in a warp. `a` is signed or not.
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

// ---- kernels that overlap

/// The next kernel's blocks may be placed beside those of this one as soon as all of these have called it.
__device__ __forceinline__ void let_next_in() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// All threads of an overlapped kernel call it, before they read what earlier work wrote and before they write
/// anything. What no work on the stream changes, such as weights, may be read before.
__device__ __forceinline__ void wait_for_previous() {
  let_next_in();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace imago::kernels::cuda

#endif
