#pragma once

// Lanes that mix, fused products and partial vectors: what the operations need beyond the codecs' vocabulary. Results
// may differ in the last bits between instruction sets. The same names with 8 lanes: kernels/avx2/ops_lanes.h.

#include "kernels/avx512/lanes.h"

namespace imago::kernels::avx512 {
namespace {  // each file has its own: they differ in flags

/// Queries whose scores with 4 keys are summed together: 16 sums, 4 keys and 1 query fit in 32 registers.
inline constexpr int kScoreQueries = 4;
/// Vectors of 4 results summed together over the values: 16 sums, 4 values and 1 weight.
inline constexpr int kSumVectors = 4;

/// What is left of v when the nearest integer is taken off; v at the nearest 64th.
inline Floats rest_of(Floats v) noexcept { return {_mm512_reduce_ps(v.v, _MM_FROUND_TO_NEAREST_INT)}; }
inline Floats nearest_64th(Floats v) noexcept {
  return {_mm512_roundscale_ps(v.v, 6 << 4 | _MM_FROUND_TO_NEAREST_INT)};
}

/// The first `count` lanes, 0 < count < kLanes; the others are zero, not written, or `fill`.
inline __mmask16 first_lanes(std::size_t count) noexcept { return static_cast<__mmask16>((1u << count) - 1); }
inline Floats load_first(const float* from, std::size_t count) noexcept {
  return {_mm512_maskz_loadu_ps(first_lanes(count), from)};
}
inline void store_first(Floats v, float* to, std::size_t count) noexcept {
  _mm512_mask_storeu_ps(to, first_lanes(count), v.v);
}
inline Floats pad_first(Floats v, std::size_t count, float fill) noexcept {
  return {_mm512_mask_blend_ps(first_lanes(count), _mm512_set1_ps(fill), v.v)};
}

inline __m256 fold_sum(__m512 v) noexcept {
  return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}
/// The sums of all lanes of a, of b, of c and of d.
inline __m128 sum_each(Floats a, Floats b, Floats c, Floats d) noexcept {
  const __m256 ab = _mm256_hadd_ps(fold_sum(a.v), fold_sum(b.v));
  const __m256 pairs = _mm256_hadd_ps(ab, _mm256_hadd_ps(fold_sum(c.v), fold_sum(d.v)));
  return _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
}
/// to[i] = the sum of all lanes of v[i].
inline void store_sums4(const Floats* v, float* to) noexcept { _mm_storeu_ps(to, sum_each(v[0], v[1], v[2], v[3])); }

inline float sum_lanes(Floats v) noexcept { return _mm_cvtss_f32(sum_each(v, v, v, v)); }
inline std::int32_t sum_lanes(Ints v) noexcept { return _mm512_reduce_add_epi32(v.v); }
inline std::int32_t max_lane(Ints v) noexcept { return _mm512_reduce_max_epi32(v.v); }
inline float max_lane(Floats v) noexcept { return _mm512_reduce_max_ps(v.v); }

/// 2 · kLanes neighbours: those at even places, those at odd ones; and back.
inline void load_pairs(const float* from, Floats& even, Floats& odd) noexcept {
  const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
  const __m512 low = _mm512_loadu_ps(from);
  const __m512 high = _mm512_loadu_ps(from + 16);
  even.v = _mm512_permutex2var_ps(low, evens, high);
  odd.v = _mm512_permutex2var_ps(low, odds, high);
}
inline void store_pairs(Floats even, Floats odd, float* to) noexcept {
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  _mm512_storeu_ps(to, _mm512_permutex2var_ps(even.v, first, odd.v));
  _mm512_storeu_ps(to + 16, _mm512_permutex2var_ps(even.v, second, odd.v));
}

}  // namespace
}  // namespace imago::kernels::avx512
