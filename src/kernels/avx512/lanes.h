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

inline float half_to_float(std::uint16_t code) noexcept { return _cvtsh_ss(code); }

#include "kernels/generic/bytes.inl.h"

/// 16 × 16 floats: four rounds of interleaving, each joining pieces twice as long.
inline void transpose16(const float* const* rows, int column, Floats* out) noexcept {
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

/// REQUIRES: count is a multiple of 16.
inline void load_transposed(const float* const* rows, int count, Floats* out) noexcept {
  for (int column = 0; column < count; column += 16) transpose16(rows, column, out + column);
}

inline Floats load_codes(const std::int8_t* p) noexcept {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline void store_floats(Floats v, float* p) noexcept { _mm512_storeu_ps(p, v.v); }

inline void store8(Ints v, std::byte* const* targets, int offset) noexcept {
  alignas(64) std::uint32_t lanes[16];
  _mm512_store_si512(lanes, v.v);
  for (int i = 0; i < 16; ++i) targets[i][offset] = static_cast<std::byte>(lanes[i]);
}
inline void store16(Ints v, std::byte* const* targets, int offset) noexcept {
  alignas(64) std::uint32_t lanes[16];
  _mm512_store_si512(lanes, v.v);
  for (int i = 0; i < 16; ++i) __builtin_memcpy(targets[i] + offset, &lanes[i], 2);
}
inline void store32(Ints v, std::byte* const* targets, int offset) noexcept {
  alignas(64) std::uint32_t lanes[16];
  _mm512_store_si512(lanes, v.v);
  for (int i = 0; i < 16; ++i) __builtin_memcpy(targets[i] + offset, &lanes[i], 4);
}

}  // namespace
}  // namespace imago::kernels::avx512
