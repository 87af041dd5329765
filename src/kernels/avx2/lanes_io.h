#pragma once

// Loads and stores of the lanes: neighbours in memory become neighbouring lanes. Addresses need no alignment. The same
// names with 16 lanes: kernels/avx512/lanes_io.h.

#include "kernels/avx2/lanes.h"

namespace imago::kernels::avx2 {
namespace {  // each file has its own: they differ in flags

inline Floats load_floats(const float* from) noexcept { return {_mm256_loadu_ps(from)}; }

inline __m128i load_64_bits(const std::byte* from) noexcept {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
}
inline __m128i load_128_bits(const std::byte* from) noexcept {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

/// Integers of 8, 16 or 32 bits, widened to the lane. The sign bit of the signed ones fills the upper bits.
inline Ints load_u8(const std::byte* from) noexcept { return {_mm256_cvtepu8_epi32(load_64_bits(from))}; }
inline Ints load_i8(const std::byte* from) noexcept { return {_mm256_cvtepi8_epi32(load_64_bits(from))}; }
inline Ints load_u16(const std::byte* from) noexcept { return {_mm256_cvtepu16_epi32(load_128_bits(from))}; }
inline Ints load_i16(const std::byte* from) noexcept { return {_mm256_cvtepi16_epi32(load_128_bits(from))}; }
inline Ints load_32(const std::byte* from) noexcept {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))};
}

/// binary16 codes as floats and back, rounded to nearest even.
inline Floats load_halves(const std::byte* from) noexcept { return {_mm256_cvtph_ps(load_128_bits(from))}; }
inline void store_halves(Floats v, std::byte* to) noexcept {
  const __m128i codes = _mm256_cvtps_ph(v.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), codes);
}

/// 64-bit numbers as floats, rounded to nearest even.
inline Floats load_doubles(const std::byte* from) noexcept {
  const __m128 low = _mm256_cvtpd_ps(_mm256_loadu_pd(reinterpret_cast<const double*>(from)));
  const __m128 high = _mm256_cvtpd_ps(_mm256_loadu_pd(reinterpret_cast<const double*>(from + 32)));
  return {_mm256_set_m128(high, low)};
}
template <class Integer>
inline Floats load_64(const std::byte* from) noexcept {  // AVX2 has no such conversion
  alignas(32) float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    Integer code;
    __builtin_memcpy(&code, from + i * 8, 8);
    lanes[i] = static_cast<float>(code);
  }
  return {_mm256_load_ps(lanes)};
}

/// Fields `first` … `first` + kLanes - 1 of kBits bits each, the first weight in the top bits of the first byte.
/// REQUIRES: `first` is a multiple of kLanes.
template <int kBits>
inline Ints load_fields(const std::byte* packed, int first) noexcept {
  static_assert(kBits == 1 || kBits == 2 || kBits == 4);
  std::uint32_t word = 0;
  __builtin_memcpy(&word, packed + first * kBits / 8, kBits);
  word = __builtin_bswap32(word);
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i shifts =
      _mm256_sub_epi32(_mm256_set1_epi32(32 - kBits), _mm256_mullo_epi32(lane, _mm256_set1_epi32(kBits)));
  const __m256i shifted = _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<std::int32_t>(word)), shifts);
  return {_mm256_and_si256(shifted, _mm256_set1_epi32((1 << kBits) - 1))};
}

/// The low 8, 16 or 32 bits of each lane.
inline void store_low8(Ints v, std::byte* to) noexcept {
  const __m256i first_of_4 = _mm256_set1_epi32(0x0C080400);
  const __m256i gathered = _mm256_shuffle_epi8(v.v, first_of_4);
  const __m128i joined = _mm_unpacklo_epi32(_mm256_castsi256_si128(gathered), _mm256_extracti128_si256(gathered, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), joined);
}
inline void store_low16(Ints v, std::byte* to) noexcept {
  const __m256i first_of_2 = _mm256_set1_epi64x(0x0D0C090805040100);
  const __m256i gathered = _mm256_shuffle_epi8(v.v, first_of_2);
  const __m256i joined = _mm256_permute4x64_epi64(gathered, 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(joined));
}
inline void store_32(Ints v, std::byte* to) noexcept { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), v.v); }

/// Each lane as a signed integer or a double of 64 bits.
inline void store_i64(Ints v, std::byte* to) noexcept {
  const auto out = reinterpret_cast<__m256i*>(to);
  _mm256_storeu_si256(out, _mm256_cvtepi32_epi64(_mm256_castsi256_si128(v.v)));
  _mm256_storeu_si256(out + 1, _mm256_cvtepi32_epi64(_mm256_extracti128_si256(v.v, 1)));
}
inline void store_doubles(Floats v, std::byte* to) noexcept {
  _mm256_storeu_pd(reinterpret_cast<double*>(to), _mm256_cvtps_pd(_mm256_castps256_ps128(v.v)));
  _mm256_storeu_pd(reinterpret_cast<double*>(to + 32), _mm256_cvtps_pd(_mm256_extractf128_ps(v.v, 1)));
}

/// to[j] = from[2j] · factor + from[2j + 1] for 4 · kLanes bytes. `to` may be `from` or lie before it.
/// REQUIRES: the results fit a byte, 0 < factor < 128.
inline void join_pairs(const std::byte* from, int factor, std::byte* to) noexcept {
  const __m256i factors = _mm256_set1_epi16(static_cast<std::int16_t>(factor | 0x100));
  const __m256i words = _mm256_maddubs_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)), factors);
  const __m256i joined = _mm256_permute4x64_epi64(_mm256_packus_epi16(words, words), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(joined));
}

}  // namespace
}  // namespace imago::kernels::avx2
