#pragma once

// Functions for host and device. Decoders and index arithmetic are written once: kernels use them on the GPU, and tests
// on the host compare them with the codecs. The device has single instructions for what the host spells out.

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define IMAGO_HD __host__ __device__ __forceinline__
#else
#define IMAGO_HD inline
#endif
#ifdef __CUDA_ARCH__  // the host compiler of a .cu file does not know this pragma
#define IMAGO_UNROLL _Pragma("unroll")
#else
#define IMAGO_UNROLL
#endif

namespace imago::kernels::cuda {

IMAGO_HD float float_of_bits(std::uint32_t bits) noexcept {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
#endif
}

IMAGO_HD std::uint32_t bits_of_float(float f) noexcept {
#ifdef __CUDA_ARCH__
  return __float_as_uint(f);
#else
  std::uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return bits;
#endif
}

/// Rounded once each: the compiler must not fuse these, so that results equal those of the host bit for bit.
IMAGO_HD float times(float a, float b) noexcept {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
IMAGO_HD float minus(float a, float b) noexcept {
#ifdef __CUDA_ARCH__
  return __fsub_rn(a, b);
#else
  return a - b;
#endif
}

IMAGO_HD float float_of_half(std::uint16_t code) noexcept {
#ifdef __CUDA_ARCH__
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(code));
  return f;
#else
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x8000u) << 16;
  const std::uint32_t magnitude = code & 0x7FFFu;
  if (magnitude >= 0x7C00u) return float_of_bits(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  // Exponent and mantissa moved into place; the power of two corrects the bias and brings subnormals out right.
  const float f = float_of_bits(magnitude << 13) * 0x1p112f;
  return float_of_bits(sign | bits_of_float(f));
#endif
}

/// Both halves of a word.
IMAGO_HD void floats_of_halves(std::uint32_t pair, float& low, float& high) noexcept {
#ifdef __CUDA_ARCH__
  asm("{.reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
      : "=f"(low), "=f"(high)
      : "r"(pair));
#else
  low = float_of_half(static_cast<std::uint16_t>(pair & 0xFFFFu));
  high = float_of_half(static_cast<std::uint16_t>(pair >> 16));
#endif
}

IMAGO_HD std::uint16_t half_of_float(float f) noexcept {
#ifdef __CUDA_ARCH__
  std::uint16_t code;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(f));
  return code;
#else
  const std::uint32_t bits = bits_of_float(f);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7C00u);
  if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 leaves 24 bits down to 2^-24, rounded to even
    return static_cast<std::uint16_t>(sign | (bits_of_float(float_of_bits(magnitude) + 0.5f) & 0xFFFFu));
  }
  const std::uint32_t rounded = magnitude - 0x38000000u + 0xFFFu + (magnitude >> 13 & 1u);
  return static_cast<std::uint16_t>(sign | rounded >> 13);
#endif
}

IMAGO_HD float float_of_bfloat(std::uint16_t code) noexcept {
  return float_of_bits(static_cast<std::uint32_t>(code) << 16);
}

/// Two floats rounded to bfloat16, `low` in the low half.
IMAGO_HD std::uint32_t bfloat_pair(float low, float high) noexcept {
#ifdef __CUDA_ARCH__
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  const auto round = [](float f) -> std::uint32_t {
    const std::uint32_t bits = bits_of_float(f);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return bits >> 16 | 0x40u;
    return (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
  };
  return round(low) | round(high) << 16;
#endif
}

/// Two floats rounded to binary16, `low` in the low half.
IMAGO_HD std::uint32_t half_pair(float low, float high) noexcept {
#ifdef __CUDA_ARCH__
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return half_of_float(low) | static_cast<std::uint32_t>(half_of_float(high)) << 16;
#endif
}

/// Byte i of the result is byte (nibble i of the selector) of b:a; a nibble above 7 gives the sign of byte (nibble - 8)
/// in all bits. Only four nibbles count. __byte_perm would spend an instruction to mask the selector.
IMAGO_HD std::uint32_t pick_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t selector) noexcept {
#ifdef __CUDA_ARCH__
  std::uint32_t picked;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(picked) : "r"(a), "r"(b), "r"(selector));
  return picked;
#else
  const std::uint64_t all = static_cast<std::uint64_t>(b) << 32 | a;
  std::uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t nibble = selector >> 4 * i & 15u;
    const std::uint32_t byte = static_cast<std::uint32_t>(all >> 8 * (nibble & 7u) & 0xFFu);
    result |= (nibble < 8 ? byte : byte < 128 ? 0u : 0xFFu) << 8 * i;
  }
  return result;
#endif
}

/// Loads 1 or 2 words or a multiple of 4, from an address aligned to their size, at most 16 bytes.
template <int kWords>
IMAGO_HD void load_words(std::uint32_t* to, const std::byte* from) noexcept {
#ifdef __CUDA_ARCH__
  if constexpr (kWords % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      const uint4 four = __ldg(reinterpret_cast<const uint4*>(from) + i);
      to[4 * i] = four.x, to[4 * i + 1] = four.y, to[4 * i + 2] = four.z, to[4 * i + 3] = four.w;
    }
  } else if constexpr (kWords == 2) {
    const uint2 two = __ldg(reinterpret_cast<const uint2*>(from));
    to[0] = two.x, to[1] = two.y;
  } else if constexpr (kWords == 1) {
    to[0] = __ldg(reinterpret_cast<const unsigned*>(from));
  }
#else
  std::memcpy(to, from, 4 * kWords);
#endif
}

/// bits & mask. The compiler would otherwise apply the mask separately to each shift of the result.
IMAGO_HD std::uint32_t mask_once(std::uint32_t bits, std::uint32_t mask) noexcept {
#ifdef __CUDA_ARCH__
  asm("and.b32 %0, %0, %1;" : "+r"(bits) : "r"(mask));
  return bits;
#else
  return bits & mask;
#endif
}

/// max(a, b). The compiler would otherwise compare the operands that a and b were computed from, with more
/// instructions.
IMAGO_HD std::uint32_t larger_of(std::uint32_t a, std::uint32_t b) noexcept {
#ifdef __CUDA_ARCH__
  std::uint32_t larger;
  asm("max.u32 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
#else
  return a < b ? b : a;
#endif
}

/// The bits of `a` where `mask` is set, else those of `b`.
IMAGO_HD std::uint32_t merge_bits(std::uint32_t a, std::uint32_t b, std::uint32_t mask) noexcept {
#ifdef __CUDA_ARCH__
  std::uint32_t merged;
  asm("lop3.b32 %0, %1, %2, %3, 0xE4;" : "=r"(merged) : "r"(a), "r"(b), "r"(mask));
  return merged;
#else
  return (a & mask) | (b & ~mask);
#endif
}

/// The upper half of a word, computed as a product: shifts share a pipe with pick_bytes, products have another one.
IMAGO_HD std::uint32_t upper_half(std::uint32_t word) noexcept {
#ifdef __CUDA_ARCH__
  std::uint32_t half;
  asm("dp2a.lo.u32.u32 %0, %1, 0x100, 0;" : "=r"(half) : "r"(word));
  return half;
#else
  return word >> 16;
#endif
}

/// The complement of the upper half; only 16 bits count.
IMAGO_HD std::uint32_t upper_half_complement(std::uint32_t word) noexcept {
#ifdef __CUDA_ARCH__
  std::uint32_t half;
  asm("dp2a.lo.u32.s32 %0, %1, 0xFF00, -1;" : "=r"(half) : "r"(word));
  return half;
#else
  return ~(word >> 16);
#endif
}

/// sum + Σ of the products of four signed bytes.
IMAGO_HD std::int32_t dot4(std::uint32_t a, std::uint32_t b, std::int32_t sum) noexcept {
#ifdef __CUDA_ARCH__
  return __dp4a(static_cast<std::int32_t>(a), static_cast<std::int32_t>(b), sum);
#else
  for (int i = 0; i < 4; ++i) {
    sum += static_cast<std::int8_t>(a >> 8 * i & 0xFFu) * static_cast<std::int8_t>(b >> 8 * i & 0xFFu);
  }
  return sum;
#endif
}

/// The same with unsigned bytes in `a`.
IMAGO_HD std::int32_t dot4_unsigned(std::uint32_t a, std::uint32_t b, std::int32_t sum) noexcept {
#ifdef __CUDA_ARCH__
  std::int32_t result;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(sum));
  return result;
#else
  for (int i = 0; i < 4; ++i) {
    sum += static_cast<std::int32_t>(a >> 8 * i & 0xFFu) * static_cast<std::int8_t>(b >> 8 * i & 0xFFu);
  }
  return sum;
#endif
}

/// Byte i, a compile-time constant after unrolling.
IMAGO_HD std::int32_t signed_byte(std::uint32_t word, int i) noexcept {
#ifdef __CUDA_ARCH__
  return static_cast<std::int32_t>(pick_bytes(word, 0, 0x8880u + 0x1111u * i));
#else
  return static_cast<std::int8_t>(word >> 8 * i & 0xFFu);
#endif
}

}  // namespace imago::kernels::cuda
