#pragma once

// CUDA's words that the kernels of the streaming matvec use, and the functions of warp_ops.cuh, for threads of an
// emulated block.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/emulated_block.h"

#define __device__
#define __host__
#define __global__
#define __shared__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes)

struct uint2 {
  std::uint32_t x, y;
};
struct uint4 {
  std::uint32_t x, y, z, w;
};
struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};

namespace imago::kernels::cuda::emulated {

/// threadIdx and its like, of which kernels use x.
template <unsigned (*kValue)()>
struct Number {
  struct {
    operator unsigned() const { return kValue(); }
  } x;
};

template <std::size_t kCount>
void give(const std::uint32_t (&values)[kCount]) {
  std::copy(std::begin(values), std::end(values), Block::now().warp().given[Block::thread() % kLanes]);
}
inline const std::uint32_t (&taken())[4] { return Block::now().warp().taken[Block::thread() % kLanes]; }

/// Of m16n8k32: what lane `lane` has of a · b.
template <bool kSigned>
void product_of_lane(const Warp& w, unsigned lane, std::uint32_t (&c)[4]) {
  const auto byte = [](std::uint32_t word, unsigned i, bool is_signed) -> std::int32_t {
    const std::uint8_t b = static_cast<std::uint8_t>(word >> 8 * i);
    return is_signed ? static_cast<std::int8_t>(b) : b;
  };
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4, lower = i / 2, column = lane % 4 * 2 + i % 2;
    std::int32_t sum = 0;
    for (unsigned k = 0; k < 32; ++k) {
      const unsigned quarter = k % 16 / 4, upper = k / 16;
      sum += byte(w.given[row * 4 + quarter][lower + 2 * upper], k % 4, kSigned) *
             byte(w.given[column * 4 + quarter][4 + upper], k % 4, true);
    }
    c[i] = static_cast<std::uint32_t>(sum);
  }
}

}  // namespace imago::kernels::cuda::emulated

inline imago::kernels::cuda::emulated::Number<&imago::kernels::cuda::emulated::Block::thread> threadIdx;
inline imago::kernels::cuda::emulated::Number<&imago::kernels::cuda::emulated::Block::index> blockIdx;
inline imago::kernels::cuda::emulated::Number<&imago::kernels::cuda::emulated::Block::count> gridDim;

inline imago::kernels::cuda::emulated::Number<&imago::kernels::cuda::emulated::Block::size> blockDim;

inline float __int_as_float(std::int32_t bits) { return std::bit_cast<float>(bits); }
inline float __uint_as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t __float_as_uint(float value) { return std::bit_cast<std::uint32_t>(value); }
inline float __ldcg(const float* from) { return *from; }
inline float __ldg(const float* from) { return *from; }
inline void __syncthreads() { imago::kernels::cuda::emulated::Block::now().meet_block(); }
inline void __syncwarp() {
  using namespace imago::kernels::cuda::emulated;
  Block::now().meet(Block::now().warp().meeting, kLanes, [] {});
}
template <class T>
T __shfl_xor_sync(unsigned, T value, unsigned mask) {
  using namespace imago::kernels::cuda::emulated;
  Warp& warp = Block::now().warp();
  give({std::bit_cast<std::uint32_t>(value)});
  Block::now().meet(warp.meeting, kLanes, [&] {
    for (unsigned i = 0; i < kLanes; ++i) warp.taken[i][0] = warp.given[i][0];
  });
  return std::bit_cast<T>(warp.taken[(Block::thread() % kLanes) ^ mask][0]);
}

namespace imago::kernels::cuda {

using std::max;
using std::min;

inline void keep(std::uint32_t&) {}
template <class T>
void keep(const T*&) {}

/// Kernels have one array in it, which begins at 0.
inline std::uint32_t shared_address(const void*) { return 0; }
template <int kWords>
void load_shared(std::uint32_t address, std::uint32_t* to) {
  constexpr int kTogether = std::min(kWords, 4);
  for (int i = 0; i < kWords; i += kTogether) {
    const std::byte* from =
        emulated::Block::now().shared(address + 4 * static_cast<std::uint32_t>(i), 4 * std::size_t{kTogether});
    std::memcpy(to + i, from, 4 * std::size_t{kTogether});
  }
}
template <int kBytes>
std::uint32_t load_shared_small(std::uint32_t address) {
  std::uint32_t value = 0;
  std::memcpy(&value, emulated::Block::now().shared(address, kBytes), kBytes);
  return value;
}
inline void store_shared(std::uint32_t address, std::uint32_t value) {
  std::memcpy(emulated::Block::now().shared(address, 4), &value, 4);
}
inline void store_shared(std::uint32_t address, std::uint32_t first, std::uint32_t second) {
  const std::uint32_t both[2] = {first, second};
  std::memcpy(emulated::Block::now().shared(address, 8), both, 8);
}

template <int kBytes>
void copy_async(std::uint32_t to, const std::byte* from) {
  emulated::Block::now().copy(to, from, kBytes);
}
inline void end_copies() { emulated::Block::now().end_copies(); }
template <int kLeft>
void wait_for_copies() {
  emulated::Block::now().wait_for_copies(kLeft);
}

template <bool kSigned>
void multiply_tile(std::int32_t (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  using namespace emulated;
  Warp& warp = Block::now().warp();
  give({a[0], a[1], a[2], a[3], b[0], b[1]});
  Block::now().meet(warp.meeting, kLanes, [&] {
    for (unsigned i = 0; i < kLanes; ++i) product_of_lane<kSigned>(warp, i, warp.taken[i]);
  });
  for (int i = 0; i < 4; ++i) c[i] += static_cast<std::int32_t>(taken()[i]);
}

inline void let_next_in() {}
inline void wait_for_previous() {}

}  // namespace imago::kernels::cuda
