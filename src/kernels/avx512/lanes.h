#pragma once

// The vocabulary of quant/lanes_scalar.h with 16 lanes. For files with AVX-512 flags only.

// GCC 12 warns of its own "undefined" vectors in this header once they are inlined (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstddef>
#include <cstdint>

namespace imago::kernels::avx512 {
namespace {  // each file has its own: they differ in flags

inline constexpr int kLanes = 16;

struct Floats {
  __m512 v;
};
struct Ints {
  __m512i v;
};
struct Mask {
  __mmask16 m;
};

inline Floats splat(float v) noexcept { return {_mm512_set1_ps(v)}; }
inline Ints splat_int(std::int32_t v) noexcept { return {_mm512_set1_epi32(v)}; }

inline Floats operator+(Floats a, Floats b) noexcept { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) noexcept { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) noexcept { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) noexcept { return {_mm512_div_ps(a.v, b.v)}; }
inline Mask operator<(Floats a, Floats b) noexcept { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline Mask operator>(Floats a, Floats b) noexcept { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
inline Mask operator<=(Floats a, Floats b) noexcept { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
inline Mask operator>=(Floats a, Floats b) noexcept { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
inline Mask operator==(Floats a, Floats b) noexcept { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }

inline Ints operator+(Ints a, Ints b) noexcept { return {_mm512_add_epi32(a.v, b.v)}; }
inline Ints operator-(Ints a, Ints b) noexcept { return {_mm512_sub_epi32(a.v, b.v)}; }
inline Ints operator*(Ints a, Ints b) noexcept { return {_mm512_mullo_epi32(a.v, b.v)}; }
inline Ints operator&(Ints a, Ints b) noexcept { return {_mm512_and_si512(a.v, b.v)}; }
inline Ints operator|(Ints a, Ints b) noexcept { return {_mm512_or_si512(a.v, b.v)}; }
inline Mask operator<(Ints a, Ints b) noexcept { return {_mm512_cmplt_epi32_mask(a.v, b.v)}; }
inline Mask operator>(Ints a, Ints b) noexcept { return {_mm512_cmpgt_epi32_mask(a.v, b.v)}; }
inline Mask operator==(Ints a, Ints b) noexcept { return {_mm512_cmpeq_epi32_mask(a.v, b.v)}; }

inline Floats select(Mask m, Floats a, Floats b) noexcept { return {_mm512_mask_blend_ps(m.m, b.v, a.v)}; }
inline Ints select(Mask m, Ints a, Ints b) noexcept { return {_mm512_mask_blend_epi32(m.m, b.v, a.v)}; }
inline Mask both(Mask a, Mask b) noexcept { return {static_cast<__mmask16>(a.m & b.m)}; }
inline Mask either(Mask a, Mask b) noexcept { return {static_cast<__mmask16>(a.m | b.m)}; }
inline bool any(Mask m) noexcept { return m.m != 0; }

/// a · b + c, rounded once.
inline Floats fused(Floats a, Floats b, Floats c) noexcept { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

inline Floats min_of(Floats a, Floats b) noexcept { return {_mm512_min_ps(a.v, b.v)}; }
inline Floats max_of(Floats a, Floats b) noexcept { return {_mm512_max_ps(a.v, b.v)}; }
inline Floats abs_of(Floats a) noexcept { return {_mm512_abs_ps(a.v)}; }
inline Ints min_of(Ints a, Ints b) noexcept { return {_mm512_min_epi32(a.v, b.v)}; }
inline Ints max_of(Ints a, Ints b) noexcept { return {_mm512_max_epi32(a.v, b.v)}; }

inline Ints truncate(Floats v) noexcept { return {_mm512_cvttps_epi32(v.v)}; }
inline Floats to_floats(Ints v) noexcept { return {_mm512_cvtepi32_ps(v.v)}; }
inline Ints bits_of(Floats v) noexcept { return {_mm512_castps_si512(v.v)}; }
inline Floats from_bits(Ints v) noexcept { return {_mm512_castsi512_ps(v.v)}; }

inline Ints shift_left(Ints v, int by) noexcept { return {_mm512_sll_epi32(v.v, _mm_cvtsi32_si128(by))}; }
inline Ints shift_right(Ints v, int by) noexcept { return {_mm512_srl_epi32(v.v, _mm_cvtsi32_si128(by))}; }

inline Ints half_bits(Floats v) noexcept {
  return {_mm512_cvtepu16_epi32(_mm512_cvtps_ph(v.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))};
}
inline Floats half_value(Ints code) noexcept { return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(code.v))}; }

inline Floats lookup16(const float* table, Ints index) noexcept {
  return {_mm512_permutexvar_ps(index.v, _mm512_loadu_ps(table))};
}
inline Ints lookup16(const std::int32_t* table, Ints index) noexcept {
  return {_mm512_permutexvar_epi32(index.v, _mm512_loadu_si512(table))};
}

/// 16 × 16 floats: four rounds of interleaving, each joining pieces twice as long.
inline void transpose(const float* const* rows, int column, Floats* out) noexcept {
  __m512 r[16], t[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(rows[i] + column);
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    const auto lo = [](__m512 a, __m512 b) {
      return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    };
    const auto hi = [](__m512 a, __m512 b) {
      return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    };
    r[i] = lo(t[i], t[i + 2]);
    r[i + 1] = hi(t[i], t[i + 2]);
    r[i + 2] = lo(t[i + 1], t[i + 3]);
    r[i + 3] = hi(t[i + 1], t[i + 3]);
  }
  // r[4g + c] has, in its quarter q, rows 4g … 4g+3 of column 4q + c.
  for (int c = 0; c < 4; ++c) {
    const __m512 even01 = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88);
    const __m512 odd01 = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xDD);
    const __m512 even23 = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
    const __m512 odd23 = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xDD);
    out[c].v = _mm512_shuffle_f32x4(even01, even23, 0x88);
    out[8 + c].v = _mm512_shuffle_f32x4(even01, even23, 0xDD);
    out[4 + c].v = _mm512_shuffle_f32x4(odd01, odd23, 0x88);
    out[12 + c].v = _mm512_shuffle_f32x4(odd01, odd23, 0xDD);
  }
}

inline Floats load_codes(const std::int8_t* p) noexcept {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline void store_floats(Floats v, float* p) noexcept { _mm512_storeu_ps(p, v.v); }

// ---- loads and stores: neighbours in memory become neighbouring lanes. Addresses need no alignment.

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
  // The first 8 lanes shift the upper half and the last 8 the lower; fewer bits all lie in the upper.
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

#include "kernels/generic/x86.inl.h"

}  // namespace
}  // namespace imago::kernels::avx512
