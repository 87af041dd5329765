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

inline float half_to_float(std::uint16_t code) noexcept { return _cvtsh_ss(code); }

#include "kernels/generic/bytes.inl.h"

inline void transpose8(const float* const* rows, int column, Floats* out) noexcept {
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

/// REQUIRES: count is a multiple of 8.
inline void load_transposed(const float* const* rows, int count, Floats* out) noexcept {
  for (int column = 0; column < count; column += 8) transpose8(rows, column, out + column);
}

inline Floats load_codes(const std::int8_t* p) noexcept {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
inline void store_floats(Floats v, float* p) noexcept { _mm256_storeu_ps(p, v.v); }

inline void store8(Ints v, std::byte* const* targets, int offset) noexcept {
  alignas(32) std::uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), v.v);
  for (int i = 0; i < 8; ++i) targets[i][offset] = static_cast<std::byte>(lanes[i]);
}
inline void store16(Ints v, std::byte* const* targets, int offset) noexcept {
  alignas(32) std::uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), v.v);
  for (int i = 0; i < 8; ++i) __builtin_memcpy(targets[i] + offset, &lanes[i], 2);
}
inline void store32(Ints v, std::byte* const* targets, int offset) noexcept {
  alignas(32) std::uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), v.v);
  for (int i = 0; i < 8; ++i) __builtin_memcpy(targets[i] + offset, &lanes[i], 4);
}

}  // namespace
}  // namespace imago::kernels::avx2
