#pragma once

// What the compiler would work out time and again: loads and stores of shared memory by its own addresses instead of
// ordinary pointers, and numbers that stay in registers.

#include <cstdint>

namespace imago::kernels::cuda {

/// A number or an address that is kept from here on.
__device__ __forceinline__ void keep(std::uint32_t& number) { asm volatile("" : "+r"(number)); }
template <class T>
__device__ __forceinline__ void keep(const T*& address) {
  asm volatile("" : "+l"(address));
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

}  // namespace imago::kernels::cuda
