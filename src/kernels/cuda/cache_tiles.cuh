#pragma once

// Keys and values of a cache in the shape of the tensor cores' second operand, straight from device memory into
// registers. Sums over the values of a head may be taken in any order, and columns of a product may mean any value: so
// a lane takes 16 bytes that lie together, and what number they have in the tile follows from that.

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/cache_rows.cuh"
#include "kernels/cuda/host_device.h"
#include "kernels/ops_args.h"

namespace imago::kernels::cuda {

/// Four codes of 8 bits as float16, exactly: 0x6400 is 1024 as float16, with a last place of 1.
__device__ __forceinline__ uint2 halves_of_codes(std::uint32_t codes) {
  const std::uint32_t biased = codes ^ 0x80808080u;
  const __half2 offset = __half2half2(__ushort_as_half(0x6480));  // 1152
  std::uint32_t low = __byte_perm(biased, 0x64646464u, 0x4140), high = __byte_perm(biased, 0x64646464u, 0x4342);
  const __half2 a = __hsub2(*reinterpret_cast<__half2*>(&low), offset);
  const __half2 b = __hsub2(*reinterpret_cast<__half2*>(&high), offset);
  return {*reinterpret_cast<const std::uint32_t*>(&a), *reinterpret_cast<const std::uint32_t*>(&b)};
}

/// Two values as float16 and what that leaves of them.
struct Split {
  std::uint32_t high, low;
};
__device__ __forceinline__ Split split_halves(float x, float y) {
  Split s;
  s.high = half_pair(x, y);
  const float2 rounded = __half22float2(*reinterpret_cast<__half2*>(&s.high));
  s.low = half_pair(x - rounded.x, y - rounded.y);
  return s;
}

__device__ __forceinline__ std::uint32_t bytes_4(const std::byte* from) {  // of any even address
  const auto* halves = reinterpret_cast<const std::uint16_t*>(from);
  return halves[0] | static_cast<std::uint32_t>(halves[1]) << 16;
}

/// Values first … first + 7 of a row (a multiple of 8; zeros if not `inside`) as float16 pairs. q8_0: codes, without
/// their scale. f32: `rest` has what rounding left.
template <CacheType kType>
struct Octet {
  uint4 pairs;
};
template <>
struct Octet<CacheType::f32> {
  uint4 pairs, rest;
};

template <CacheType kType>
__device__ __forceinline__ Octet<kType> load_octet(const std::byte* row, unsigned first, bool inside) {
  Octet<kType> o = {};
  if (!inside) return o;
  if constexpr (kType == CacheType::f16) {
    o.pairs = *reinterpret_cast<const uint4*>(row + 2 * first);
  } else if constexpr (kType == CacheType::f32) {
    const auto* from = reinterpret_cast<const float4*>(row + 4 * first);
    const float4 a = from[0], b = from[1];
    const Split s0 = split_halves(a.x, a.y), s1 = split_halves(a.z, a.w);
    const Split s2 = split_halves(b.x, b.y), s3 = split_halves(b.z, b.w);
    o.pairs = {s0.high, s1.high, s2.high, s3.high};
    o.rest = {s0.low, s1.low, s2.low, s3.low};
  } else {
    const std::byte* const codes = row + first / 32 * kQ8Bytes + 2 + first % 32;
    const uint2 a = halves_of_codes(bytes_4(codes)), b = halves_of_codes(bytes_4(codes + 4));
    o.pairs = {a.x, a.y, b.x, b.y};
  }
  return o;
}

/// Eight values as float16 has them, zeros if they are not there.
__device__ __forceinline__ uint4 halves_of(const float* x, bool inside) {
  if (!inside) return {0, 0, 0, 0};
  const auto pair = [&](int i) { return half_of_float(x[i]) | std::uint32_t{half_of_float(x[i + 1])} << 16; };
  return {pair(0), pair(2), pair(4), pair(6)};
}

__device__ __forceinline__ float q8_scale(const std::byte* row, unsigned block, bool inside) {
  return inside ? float_of_half(*reinterpret_cast<const std::uint16_t*>(row + block * kQ8Bytes)) : 0.0f;
}

}  // namespace imago::kernels::cuda
