#pragma once

// What products need beyond lanes.h. A *quad* is four bytes in one lane: four columns of the row that the lane stands
// for.

#include "kernels/avx512/lanes.h"

namespace imago::kernels::avx512 {
namespace {  // each file has its own: they differ in flags

inline constexpr int kRegisters = 32;
inline constexpr bool kCheapLookup = true;  // lookup16 is one instruction

/// Bytes as the upper halves of binary16 codes, and E4M3 codes as binary16 of 2^-8 of their value (NaN is not kept).
inline Floats upper_bytes_of_halves(const std::byte* from) noexcept {
  return {_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(load_128_bits(from)), 8))};
}
inline Floats e4m3_in_halves(const std::byte* from) noexcept {
  const __m256i wide = _mm256_cvtepi8_epi16(load_128_bits(from));  // the sign fills the upper byte
  const __m256i moved = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(0x3F80));
  const __m256i sign = _mm256_and_si256(wide, _mm256_set1_epi16(static_cast<std::int16_t>(0x8000)));
  return {_mm512_cvtph_ps(_mm256_or_si256(moved, sign))};
}

/// load_32 into a register, where it stays: of a value that is shifted many ways the compiler would otherwise load it
/// anew for each.
inline Ints load_quads_once(const std::byte* from) noexcept {
  Ints v = load_32(from);
  asm("" : "+v"(v.v));
  return v;
}
/// table[index] for every byte, 0 <= index < 16.
inline Ints lookup_bytes(const std::int8_t* table, Ints index) noexcept {
  const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(levels), index.v)};
}
inline Ints flip_bits(Ints v, std::int32_t pattern) noexcept {
  return {_mm512_xor_si512(v.v, _mm512_set1_epi32(pattern))};
}
inline Ints minus_bytes(Ints v, int value) noexcept {
  return {_mm512_sub_epi8(v.v, _mm512_set1_epi8(static_cast<char>(value)))};
}
/// The first `count` lanes.
inline void store_some(Floats v, float* to, int count) noexcept {
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), v.v);
}

#if defined(__AVX512VNNI__)
/// sum + Σ over the four bytes of each lane of unsigned · signed. Whole bytes are safe.
inline constexpr bool kWholeBytes = true;
inline Ints dot_unsigned(Ints sum, Ints codes, Ints x) noexcept { return {_mm512_dpbusd_epi32(sum.v, codes.v, x.v)}; }
#else
/// Without VNNI two products meet in 16 bits, which holds for codes up to 127; whole bytes go through dot_signed.
inline constexpr bool kWholeBytes = false;
inline Ints dot_unsigned(Ints sum, Ints codes, Ints x) noexcept {
  const __m512i pairs = _mm512_maddubs_epi16(codes.v, x.v);
  return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
}
#endif
/// sum + Σ of signed · signed: |code| · (x with the sign of the code). REQUIRES: x is never -128.
inline Ints dot_signed(Ints sum, Ints codes, Ints x) noexcept {
  const __mmask64 negative = _mm512_movepi8_mask(codes.v);
  const __m512i signed_x = _mm512_mask_sub_epi8(x.v, negative, _mm512_setzero_si512(), x.v);
  const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(codes.v), signed_x);
  return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
}

}  // namespace
}  // namespace imago::kernels::avx512
