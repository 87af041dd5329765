#pragma once

// What kernels of convolutions and scans share: floats in shared memory, numbers of blocks.
//
// Tests run these kernels on the host (tests/emulated_gpu): one dimension of blocks and threads, shared memory by its
// addresses. Therefore functions named launch_… call launch(name, kernel, blocks, threads, bytes of shared memory, the
// kernel's argument).

#include "kernels/cuda/recurrent.h"
#include "kernels/cuda/scalar_ops.h"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

__device__ inline float read_shared(std::uint32_t address) {
  std::uint32_t bits[1];
  load_shared<1>(address, bits);
  return float_of_bits(bits[0]);
}
__device__ inline void read_shared(std::uint32_t address, float (&to)[4]) {
  std::uint32_t bits[4];
  load_shared<4>(address, bits);
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = float_of_bits(bits[i]);
}
__device__ inline void write_shared(std::uint32_t address, float value) { store_shared(address, bits_of_float(value)); }
__device__ inline void copy_to_shared(std::uint32_t address, const float* from) {
  copy_async<4>(address, reinterpret_cast<const std::byte*>(from));
}

/// Both addresses are aligned to 16 bytes.
__device__ inline void copy_four_to_shared(std::uint32_t address, const float* from) {
  copy_async<16>(address, reinterpret_cast<const std::byte*>(from));
}

inline unsigned blocks_of(std::size_t count, std::size_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

}  // namespace imago::kernels::cuda
