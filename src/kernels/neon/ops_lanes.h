#pragma once

// Lanes that mix, fused products and partial vectors: what the operations need beyond the codecs' vocabulary. Results
// may differ in the last bits between instruction sets. The same names with 8 lanes: kernels/avx2/ops_lanes.h.

#include "kernels/neon/lanes.h"

namespace imago::kernels::neon {
namespace {  // each file has its own: they differ in flags

/// Queries whose scores with 4 keys are summed together: 16 sums, 4 keys and 1 query fit in 32 registers.
inline constexpr int kScoreQueries = 4;
/// Vectors of 4 results summed together over the values: 16 sums, 4 values and 1 weight.
inline constexpr int kSumVectors = 4;

/// What is left of v when the nearest integer is taken off; v at the nearest 64th.
inline Floats rest_of(Floats v) noexcept { return v - Floats{vrndnq_f32(v.v)}; }
inline Floats nearest_64th(Floats v) noexcept { return Floats{vrndnq_f32((v * splat(64.0f)).v)} * splat(0x1p-6f); }

/// The first `count` lanes, 0 < count < kLanes; the others are zero, not written, or `fill`.
inline Floats load_first(const float* from, std::size_t count) noexcept {
  float lanes[kLanes] = {};
  for (std::size_t i = 0; i < count; ++i) lanes[i] = from[i];
  return load_floats(lanes);
}
inline void store_first(Floats v, float* to, std::size_t count) noexcept {
  float lanes[kLanes];
  store_floats(v, lanes);
  for (std::size_t i = 0; i < count; ++i) to[i] = lanes[i];
}
inline Floats pad_first(Floats v, std::size_t count, float fill) noexcept {
  const std::uint32_t lanes[kLanes] = {0, 1, 2, 3};
  const Mask inside = {vcltq_u32(vld1q_u32(lanes), vdupq_n_u32(static_cast<std::uint32_t>(count)))};
  return select(inside, v, splat(fill));
}

/// to[i] = the sum of all lanes of v[i].
inline void store_sums4(const Floats* v, float* to) noexcept {
  vst1q_f32(to, vpaddq_f32(vpaddq_f32(v[0].v, v[1].v), vpaddq_f32(v[2].v, v[3].v)));
}

inline float sum_lanes(Floats v) noexcept { return vaddvq_f32(v.v); }
inline std::int32_t sum_lanes(Ints v) noexcept { return vaddvq_s32(v.v); }
inline std::int32_t max_lane(Ints v) noexcept { return vmaxvq_s32(v.v); }
inline float max_lane(Floats v) noexcept { return vmaxvq_f32(v.v); }

/// 2 · kLanes neighbours: those at even places, those at odd ones; and back.
inline void load_pairs(const float* from, Floats& even, Floats& odd) noexcept {
  const float32x4x2_t pairs = vld2q_f32(from);
  even.v = pairs.val[0];
  odd.v = pairs.val[1];
}
inline void store_pairs(Floats even, Floats odd, float* to) noexcept {
  const float32x4x2_t pairs = {{even.v, odd.v}};
  vst2q_f32(to, pairs);
}

}  // namespace
}  // namespace imago::kernels::neon
