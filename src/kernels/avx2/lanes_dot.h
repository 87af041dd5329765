#pragma once

// What products need beyond lanes.h. A *quad* is four bytes in one lane: four columns of the row that the lane stands
// for.

#include "kernels/avx2/lanes.h"

namespace imago::kernels::avx2 {
namespace {  // each file has its own: they differ in flags

inline constexpr int kRegisters = 16;
inline constexpr bool kCheapLookup = false;  // lookup16 takes two permutations and a blend

/// Bytes as the upper halves of binary16 codes, and E4M3 codes as binary16 of 2^-8 of their value (NaN is not kept).
inline Floats upper_bytes_of_halves(const std::byte* from) noexcept {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return {_mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 8))};
}
inline Floats e4m3_in_halves(const std::byte* from) noexcept {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  const __m128i wide = _mm_cvtepi8_epi16(bytes);  // the sign fills the upper byte
  const __m128i moved = _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(0x3F80));
  const __m128i sign = _mm_and_si128(wide, _mm_set1_epi16(static_cast<std::int16_t>(0x8000)));
  return {_mm256_cvtph_ps(_mm_or_si128(moved, sign))};
}

/// load_32 into a register, where it stays: of a value that is shifted many ways the compiler would otherwise load it
/// anew for each.
inline Ints load_quads_once(const std::byte* from) noexcept {
  Ints v = load_32(from);
  asm("" : "+x"(v.v));
  return v;
}
/// table[index] for every byte, 0 <= index < 16.
inline Ints lookup_bytes(const std::int8_t* table, Ints index) noexcept {
  const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return {_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(levels), index.v)};
}
inline Ints flip_bits(Ints v, std::int32_t pattern) noexcept {
  return {_mm256_xor_si256(v.v, _mm256_set1_epi32(pattern))};
}
inline Ints minus_bytes(Ints v, int value) noexcept {
  return {_mm256_sub_epi8(v.v, _mm256_set1_epi8(static_cast<char>(value)))};
}
/// The first `count` lanes.
inline void store_some(Floats v, float* to, int count) noexcept {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  _mm256_maskstore_ps(to, _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane), v.v);
}

/// Two products meet in 16 bits, which holds for codes up to 127; whole bytes go through dot_signed.
inline constexpr bool kWholeBytes = false;
/// sum + Σ over the four bytes of each lane of unsigned · signed.
inline Ints dot_unsigned(Ints sum, Ints codes, Ints x) noexcept {
  const __m256i pairs = _mm256_maddubs_epi16(codes.v, x.v);
  return {_mm256_add_epi32(sum.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
}
/// sum + Σ of signed · signed: |code| · (x with the sign of the code). REQUIRES: x is never -128.
inline Ints dot_signed(Ints sum, Ints codes, Ints x) noexcept {
  const __m256i signed_x = _mm256_sign_epi8(x.v, codes.v);
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes.v), signed_x);
  return {_mm256_add_epi32(sum.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
}

}  // namespace
}  // namespace imago::kernels::avx2
