#pragma once

// Loads and stores of the lanes: neighbours in memory become neighbouring lanes. Addresses need no alignment. The same
// names with 8 lanes: kernels/avx2/lanes_io.h.

#include "kernels/avx512/lanes.h"

namespace imago::kernels::avx512 {
namespace {  // each file has its own: they differ in flags

inline Floats load_floats(const float* from) noexcept { return {_mm512_loadu_ps(from)}; }

inline __m128i load_128_bits(const std::byte* from) noexcept {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
inline __m256i load_256_bits(const std::byte* from) noexcept {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
inline Floats join_halves(__m256 low, __m256 high) noexcept {
  return {_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1)};
}

/// Integers of 8, 16 or 32 bits, widened to the lane. The sign bit of the signed ones fills the upper bits.
inline Ints load_u8(const std::byte* from) noexcept { return {_mm512_cvtepu8_epi32(load_128_bits(from))}; }
inline Ints load_i8(const std::byte* from) noexcept { return {_mm512_cvtepi8_epi32(load_128_bits(from))}; }
inline Ints load_u16(const std::byte* from) noexcept { return {_mm512_cvtepu16_epi32(load_256_bits(from))}; }
inline Ints load_i16(const std::byte* from) noexcept { return {_mm512_cvtepi16_epi32(load_256_bits(from))}; }
inline Ints load_32(const std::byte* from) noexcept { return {_mm512_loadu_si512(from)}; }

/// binary16 codes as floats and back, rounded to nearest even.
inline Floats load_halves(const std::byte* from) noexcept { return {_mm512_cvtph_ps(load_256_bits(from))}; }
inline void store_halves(Floats v, std::byte* to) noexcept {
  const __m256i codes = _mm512_cvtps_ph(v.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), codes);
}

/// 64-bit numbers as floats, rounded to nearest even.
inline Floats load_doubles(const std::byte* from) noexcept {
  return join_halves(_mm512_cvtpd_ps(_mm512_loadu_pd(from)), _mm512_cvtpd_ps(_mm512_loadu_pd(from + 64)));
}
template <class Integer>
inline Floats load_64(const std::byte* from) noexcept {
  const __m512i low = _mm512_loadu_si512(from);
  const __m512i high = _mm512_loadu_si512(from + 64);
  if constexpr (Integer(-1) < 0) {
    return join_halves(_mm512_cvtepi64_ps(low), _mm512_cvtepi64_ps(high));
  } else {
    return join_halves(_mm512_cvtepu64_ps(low), _mm512_cvtepu64_ps(high));
  }
}

/// Fields `first` … `first` + kLanes - 1 of kBits bits each, the first weight in the top bits of the first byte.
/// REQUIRES: `first` is a multiple of kLanes.
template <int kBits>
inline Ints load_fields(const std::byte* packed, int first) noexcept {
  static_assert(kBits == 1 || kBits == 2 || kBits == 4);
  std::uint64_t word = 0;
  __builtin_memcpy(&word, packed + first * kBits / 8, 2 * kBits);
  word = __builtin_bswap64(word);
  // Of the 64 bits, the first 8 lanes shift the upper half and the last 8 the lower; fewer bits all lie in the upper.
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i first_bit = _mm512_mullo_epi32(lane, _mm512_set1_epi32(kBits));
  const __m512i half = _mm512_xor_si512(_mm512_srli_epi32(first_bit, 5), _mm512_set1_epi32(1));
  const __m512i shifts =
      _mm512_sub_epi32(_mm512_set1_epi32(32 - kBits), _mm512_and_si512(first_bit, _mm512_set1_epi32(31)));
  const __m512i halves = _mm512_permutexvar_epi32(half, _mm512_set1_epi64(static_cast<std::int64_t>(word)));
  return {_mm512_and_si512(_mm512_srlv_epi32(halves, shifts), _mm512_set1_epi32((1 << kBits) - 1))};
}

/// The low 8, 16 or 32 bits of each lane.
inline void store_low8(Ints v, std::byte* to) noexcept {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(v.v));
}
inline void store_low16(Ints v, std::byte* to) noexcept {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(v.v));
}
inline void store_32(Ints v, std::byte* to) noexcept { _mm512_storeu_si512(to, v.v); }

/// Each lane as a signed integer or a double of 64 bits.
inline void store_i64(Ints v, std::byte* to) noexcept {
  _mm512_storeu_si512(to, _mm512_cvtepi32_epi64(_mm512_castsi512_si256(v.v)));
  _mm512_storeu_si512(to + 64, _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(v.v, 1)));
}
inline void store_doubles(Floats v, std::byte* to) noexcept {
  _mm512_storeu_pd(to, _mm512_cvtps_pd(_mm512_castps512_ps256(v.v)));
  _mm512_storeu_pd(to + 64, _mm512_cvtps_pd(_mm512_extractf32x8_ps(v.v, 1)));
}

/// to[j] = from[2j] · factor + from[2j + 1] for 4 · kLanes bytes. `to` may be `from` or lie before it.
/// REQUIRES: the results fit a byte, 0 < factor < 128.
inline void join_pairs(const std::byte* from, int factor, std::byte* to) noexcept {
  const __m512i factors = _mm512_set1_epi16(static_cast<std::int16_t>(factor | 0x100));
  const __m512i words = _mm512_maddubs_epi16(_mm512_loadu_si512(from), factors);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi16_epi8(words));
}

}  // namespace
}  // namespace imago::kernels::avx512
