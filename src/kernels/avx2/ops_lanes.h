#pragma once

// Lanes that mix, fused products and partial vectors: what the operations need beyond the codecs' vocabulary. Results
// may differ in the last bits between instruction sets. The same names with 16 lanes: kernels/avx512/ops_lanes.h.

#include "kernels/avx2/lanes.h"

namespace imago::kernels::avx2 {

/// Queries whose scores with 4 keys are summed together: 8 sums, 4 keys and 1 query fit in 16 registers.
inline constexpr int kScoreQueries = 2;
/// Vectors of 4 results summed together over the values: 8 sums, 2 values and 1 weight.
inline constexpr int kSumVectors = 2;

/// What is left of v when the nearest integer is taken off; v at the nearest 64th.
inline Floats nearest(Floats v) noexcept {
  return {_mm256_round_ps(v.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Floats rest_of(Floats v) noexcept { return v - nearest(v); }
inline Floats nearest_64th(Floats v) noexcept { return nearest(v * splat(64.0f)) * splat(0x1p-6f); }

/// The first `count` lanes, 0 < count < kLanes; the others are zero, not written, or `fill`.
inline __m256i first_lanes(std::size_t count) noexcept {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lane);
}
inline Floats load_first(const float* from, std::size_t count) noexcept {
  return {_mm256_maskload_ps(from, first_lanes(count))};
}
inline void store_first(Floats v, float* to, std::size_t count) noexcept {
  _mm256_maskstore_ps(to, first_lanes(count), v.v);
}
inline Floats pad_first(Floats v, std::size_t count, float fill) noexcept {
  return {_mm256_blendv_ps(_mm256_set1_ps(fill), v.v, _mm256_castsi256_ps(first_lanes(count)))};
}

/// The sums of all lanes of a, of b, of c and of d.
inline __m128 sum_each(Floats a, Floats b, Floats c, Floats d) noexcept {
  const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(a.v, b.v), _mm256_hadd_ps(c.v, d.v));
  return _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
}
/// to[i] = the sum of all lanes of v[i].
inline void store_sums4(const Floats* v, float* to) noexcept { _mm_storeu_ps(to, sum_each(v[0], v[1], v[2], v[3])); }

inline float sum_lanes(Floats v) noexcept { return _mm_cvtss_f32(sum_each(v, v, v, v)); }
inline std::int32_t sum_lanes(Ints v) noexcept {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v.v), _mm256_extracti128_si256(v.v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}
inline std::int32_t max_lane(Ints v) noexcept {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v.v), _mm256_extracti128_si256(v.v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1)));
}
inline float max_lane(Floats v) noexcept {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v.v), _mm256_extractf128_ps(v.v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

/// 2 · kLanes neighbours: those at even places, those at odd ones; and back.
inline void load_pairs(const float* from, Floats& even, Floats& odd) noexcept {
  const __m256 low = _mm256_loadu_ps(from);
  const __m256 high = _mm256_loadu_ps(from + 8);
  const auto in_order = [](__m256 v) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xD8)); };
  even.v = in_order(_mm256_shuffle_ps(low, high, 0x88));
  odd.v = in_order(_mm256_shuffle_ps(low, high, 0xDD));
}
inline void store_pairs(Floats even, Floats odd, float* to) noexcept {
  const __m256 low = _mm256_unpacklo_ps(even.v, odd.v);
  const __m256 high = _mm256_unpackhi_ps(even.v, odd.v);
  _mm256_storeu_ps(to, _mm256_permute2f128_ps(low, high, 0x20));
  _mm256_storeu_ps(to + 8, _mm256_permute2f128_ps(low, high, 0x31));
}

}  // namespace imago::kernels::avx2
