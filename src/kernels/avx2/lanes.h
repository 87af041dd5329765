#pragma once

// The vocabulary of quant/lanes_scalar.h with 8 lanes. For files with AVX2 flags only.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace imago::kernels::avx2 {
namespace {  // each file has its own: they differ in flags

inline constexpr int kLanes = 8;

struct Floats {
  __m256 v;
};
struct Ints {
  __m256i v;
};
struct Mask {
  __m256 m;  // all bits of a lane set or none
};

inline Floats splat(float v) noexcept { return {_mm256_set1_ps(v)}; }
inline Ints splat_int(std::int32_t v) noexcept { return {_mm256_set1_epi32(v)}; }

inline Floats operator+(Floats a, Floats b) noexcept { return {_mm256_add_ps(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) noexcept { return {_mm256_sub_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) noexcept { return {_mm256_mul_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) noexcept { return {_mm256_div_ps(a.v, b.v)}; }
inline Mask operator<(Floats a, Floats b) noexcept { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
inline Mask operator>(Floats a, Floats b) noexcept { return {_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)}; }
inline Mask operator<=(Floats a, Floats b) noexcept { return {_mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ)}; }
inline Mask operator>=(Floats a, Floats b) noexcept { return {_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)}; }
inline Mask operator==(Floats a, Floats b) noexcept { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }

inline Ints operator+(Ints a, Ints b) noexcept { return {_mm256_add_epi32(a.v, b.v)}; }
inline Ints operator-(Ints a, Ints b) noexcept { return {_mm256_sub_epi32(a.v, b.v)}; }
inline Ints operator*(Ints a, Ints b) noexcept { return {_mm256_mullo_epi32(a.v, b.v)}; }
inline Ints operator&(Ints a, Ints b) noexcept { return {_mm256_and_si256(a.v, b.v)}; }
inline Ints operator|(Ints a, Ints b) noexcept { return {_mm256_or_si256(a.v, b.v)}; }
inline Mask operator<(Ints a, Ints b) noexcept { return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(b.v, a.v))}; }
inline Mask operator>(Ints a, Ints b) noexcept { return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(a.v, b.v))}; }
inline Mask operator==(Ints a, Ints b) noexcept { return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(a.v, b.v))}; }

inline Floats select(Mask m, Floats a, Floats b) noexcept { return {_mm256_blendv_ps(b.v, a.v, m.m)}; }
inline Ints select(Mask m, Ints a, Ints b) noexcept { return {_mm256_blendv_epi8(b.v, a.v, _mm256_castps_si256(m.m))}; }
inline Mask both(Mask a, Mask b) noexcept { return {_mm256_and_ps(a.m, b.m)}; }
inline Mask either(Mask a, Mask b) noexcept { return {_mm256_or_ps(a.m, b.m)}; }
inline bool any(Mask m) noexcept { return _mm256_movemask_ps(m.m) != 0; }

/// a · b + c, rounded once.
inline Floats fused(Floats a, Floats b, Floats c) noexcept { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }

inline Floats min_of(Floats a, Floats b) noexcept { return {_mm256_min_ps(a.v, b.v)}; }
inline Floats max_of(Floats a, Floats b) noexcept { return {_mm256_max_ps(a.v, b.v)}; }
inline Floats abs_of(Floats a) noexcept {
  return {_mm256_and_ps(a.v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF)))};
}
inline Ints min_of(Ints a, Ints b) noexcept { return {_mm256_min_epi32(a.v, b.v)}; }
inline Ints max_of(Ints a, Ints b) noexcept { return {_mm256_max_epi32(a.v, b.v)}; }

inline Ints truncate(Floats v) noexcept { return {_mm256_cvttps_epi32(v.v)}; }
inline Floats to_floats(Ints v) noexcept { return {_mm256_cvtepi32_ps(v.v)}; }
inline Ints bits_of(Floats v) noexcept { return {_mm256_castps_si256(v.v)}; }
inline Floats from_bits(Ints v) noexcept { return {_mm256_castsi256_ps(v.v)}; }

inline Ints shift_left(Ints v, int by) noexcept { return {_mm256_sll_epi32(v.v, _mm_cvtsi32_si128(by))}; }
inline Ints shift_right(Ints v, int by) noexcept { return {_mm256_srl_epi32(v.v, _mm_cvtsi32_si128(by))}; }

inline Ints half_bits(Floats v) noexcept {
  return {_mm256_cvtepu16_epi32(_mm256_cvtps_ph(v.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))};
}
inline Floats half_value(Ints code) noexcept {
  const __m256i low16 = _mm256_and_si256(code.v, _mm256_set1_epi32(0xFFFF));
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low16, low16), 0x08);
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(packed))};
}

inline Floats lookup16(const float* table, Ints index) noexcept {
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), index.v);
  const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), index.v);
  const __m256i is_high = _mm256_slli_epi32(index.v, 28);  // bit 3 becomes the sign that blendv reads
  return {_mm256_blendv_ps(low, high, _mm256_castsi256_ps(is_high))};
}
inline Ints lookup16(const std::int32_t* table, Ints index) noexcept {
  return bits_of(lookup16(reinterpret_cast<const float*>(table), index));
}

inline void transpose(const float* const* rows, int column, Floats* out) noexcept {
  __m256 r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(rows[i] + column);
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
  }
  for (int c = 0; c < 4; ++c) {
    out[c].v = _mm256_permute2f128_ps(r[c], r[4 + c], 0x20);
    out[4 + c].v = _mm256_permute2f128_ps(r[c], r[4 + c], 0x31);
  }
}

inline Floats load_codes(const std::int8_t* p) noexcept {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
inline void store_floats(Floats v, float* p) noexcept { _mm256_storeu_ps(p, v.v); }

// ---- loads and stores: neighbours in memory become neighbouring lanes. Addresses need no alignment.

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

#include "kernels/generic/x86.inl.h"

}  // namespace
}  // namespace imago::kernels::avx2
