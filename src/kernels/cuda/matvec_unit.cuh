#pragma once

// What a lane of the matvec takes at once: 16 bytes of codes, its neighbour the next 16. That is half a group of 8-bit
// codes, a group of 4-bit codes, two of 2-bit and four of 1-bit ones, with what else belongs to them; or up to sixteen
// plain values.

#include <cstdint>

#include "kernels/cuda/decode.cuh"

namespace imago::kernels::cuda {

/// Of a coded form.
template <class Form>
struct Unit {
  using Codes = typename Form::Codes;
  using Scales = typename Form::Scales;
  static constexpr bool kHalf = Codes::kBytes == 32;              ///< half a group
  static constexpr int kGroups = kHalf ? 1 : 16 / Codes::kBytes;  ///< groups, or the one of which it is a half
  static constexpr int kWords = kHalf ? 4 : 8;                    ///< four codes each, of a group

  std::uint32_t codes[4];
  std::uint32_t high[kGroups * Codes::kHighBytes / 4 + 1];
  std::uint32_t scales, supers[Scales::kSuperWords];
  float row_scales[kGroups];

  static constexpr std::uint32_t count(std::uint32_t groups) noexcept {
    return kHalf ? groups * 2 : (groups + kGroups - 1) / kGroups;
  }
  /// Codes of group i of the unit.
  __device__ __forceinline__ void words(int i, std::uint32_t (&out)[kWords]) const {
    if constexpr (kHalf) {
#pragma unroll
      for (int w = 0; w < 4; ++w) out[w] = codes[w];
    } else {
      Codes::words(codes + i * Codes::kBytes / 4, high + i * Codes::kHighBytes / 4, out);
    }
  }
  __device__ __forceinline__ GroupScale scale(int i) const {
    const std::uint32_t own = Scales::kBytes > 0 ? scales >> 8 * Scales::kBytes * i : 0;
    return Scales::read(own, supers, Scales::kRow ? row_scales[i] : 0.0f);
  }
};

/// Codes 2i and 2i + 1 of a word as two binary16.
template <class T>
struct Fp8Pairs {
  static constexpr bool kExist = false;
};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
template <>
struct Fp8Pairs<Fp8E4M3> {
  static constexpr bool kExist = true;
  static __device__ __forceinline__ std::uint32_t halves(std::uint32_t word, int i) {
    std::uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(word >> 16 * i)));
    return halves;
  }
};
#endif
template <>
struct Fp8Pairs<Fp8E5M2> {
  static constexpr bool kExist = true;
  static __device__ __forceinline__ std::uint32_t halves(std::uint32_t word, int i) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    std::uint32_t halves;
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(word >> 16 * i)));
    return halves;
#else
    return pick_bytes(word, 0, i == 0 ? 0x1404u : 0x3424u);  // the upper bytes of binary16
#endif
  }
};

/// Of a plain form.
template <class T>
struct Unit<Plain<T>> {
  static constexpr int kValues = static_cast<int>(16 / sizeof(T));
  uint4 bytes;

  static constexpr std::uint32_t count(std::uint32_t groups) noexcept { return groups * (kGroup / kValues); }

  __device__ __forceinline__ void values(float (&out)[kValues]) const {
    const std::uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
    if constexpr (std::is_same_v<T, Half>) {
#pragma unroll
      for (int i = 0; i < 4; ++i) floats_of_halves(words[i], out[2 * i], out[2 * i + 1]);
    } else if constexpr (Fp8Pairs<T>::kExist) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        floats_of_halves(Fp8Pairs<T>::halves(words[i / 2], i % 2), out[2 * i], out[2 * i + 1]);
    } else {
      T codes[kValues];
      memcpy(codes, &bytes, 16);
#pragma unroll
      for (int i = 0; i < kValues; ++i) out[i] = plain_float(codes[i]);
    }
  }
};

/// Bytes of a group in Planes::codes.
template <class Form>
constexpr int code_bytes() noexcept {
  if constexpr (Form::kCoded) {
    return Form::Codes::kBytes;
  } else {
    return Form::kBytes;
  }
}

}  // namespace imago::kernels::cuda
