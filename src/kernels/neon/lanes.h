#pragma once

// The vocabulary of quant/lanes_scalar.h with 4 lanes. For files with NEON flags only.

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "kernels/neon/lanes_bytes.h"

namespace imago::kernels::neon {
namespace {  // each file has its own: they differ in flags

inline constexpr int kLanes = 4;

struct Floats {
  float32x4_t v;
};
struct Ints {
  int32x4_t v;
};
struct Mask {
  uint32x4_t m;  // all bits of a lane set or none
};

inline Floats splat(float v) noexcept { return {vdupq_n_f32(v)}; }
inline Ints splat_int(std::int32_t v) noexcept { return {vdupq_n_s32(v)}; }

inline Floats operator+(Floats a, Floats b) noexcept { return {vaddq_f32(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) noexcept { return {vsubq_f32(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) noexcept { return {vmulq_f32(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) noexcept { return {vdivq_f32(a.v, b.v)}; }
inline Mask operator<(Floats a, Floats b) noexcept { return {vcltq_f32(a.v, b.v)}; }
inline Mask operator>(Floats a, Floats b) noexcept { return {vcgtq_f32(a.v, b.v)}; }
inline Mask operator<=(Floats a, Floats b) noexcept { return {vcleq_f32(a.v, b.v)}; }
inline Mask operator>=(Floats a, Floats b) noexcept { return {vcgeq_f32(a.v, b.v)}; }
inline Mask operator==(Floats a, Floats b) noexcept { return {vceqq_f32(a.v, b.v)}; }

inline Ints operator+(Ints a, Ints b) noexcept { return {vaddq_s32(a.v, b.v)}; }
inline Ints operator-(Ints a, Ints b) noexcept { return {vsubq_s32(a.v, b.v)}; }
inline Ints operator*(Ints a, Ints b) noexcept { return {vmulq_s32(a.v, b.v)}; }
inline Ints operator&(Ints a, Ints b) noexcept { return {vandq_s32(a.v, b.v)}; }
inline Ints operator|(Ints a, Ints b) noexcept { return {vorrq_s32(a.v, b.v)}; }
inline Mask operator<(Ints a, Ints b) noexcept { return {vcltq_s32(a.v, b.v)}; }
inline Mask operator>(Ints a, Ints b) noexcept { return {vcgtq_s32(a.v, b.v)}; }
inline Mask operator==(Ints a, Ints b) noexcept { return {vceqq_s32(a.v, b.v)}; }

inline Floats select(Mask m, Floats a, Floats b) noexcept { return {vbslq_f32(m.m, a.v, b.v)}; }
inline Ints select(Mask m, Ints a, Ints b) noexcept { return {vbslq_s32(m.m, a.v, b.v)}; }
inline Mask both(Mask a, Mask b) noexcept { return {vandq_u32(a.m, b.m)}; }
inline Mask either(Mask a, Mask b) noexcept { return {vorrq_u32(a.m, b.m)}; }
inline bool any(Mask m) noexcept { return vmaxvq_u32(m.m) != 0; }

// Not vminq and vmaxq: those give NaN where the definition gives b, and order the zeros.
inline Floats min_of(Floats a, Floats b) noexcept { return select(a < b, a, b); }
inline Floats max_of(Floats a, Floats b) noexcept { return select(a > b, a, b); }
inline Floats abs_of(Floats a) noexcept { return {vabsq_f32(a.v)}; }
inline Ints min_of(Ints a, Ints b) noexcept { return {vminq_s32(a.v, b.v)}; }
inline Ints max_of(Ints a, Ints b) noexcept { return {vmaxq_s32(a.v, b.v)}; }

inline Ints truncate(Floats v) noexcept { return {vcvtq_s32_f32(v.v)}; }
inline Floats to_floats(Ints v) noexcept { return {vcvtq_f32_s32(v.v)}; }
inline Ints bits_of(Floats v) noexcept { return {vreinterpretq_s32_f32(v.v)}; }
inline Floats from_bits(Ints v) noexcept { return {vreinterpretq_f32_s32(v.v)}; }

// Operators, since the intrinsics want either constants or vectors of distances. They become shifts by a constant
// wherever the distance is known after inlining.
inline Ints shift_left(Ints v, int by) noexcept { return {v.v << by}; }
inline Ints shift_right(Ints v, int by) noexcept {
  return {vreinterpretq_s32_u32(vreinterpretq_u32_s32(v.v) >> static_cast<std::uint32_t>(by))};
}

inline Ints half_bits(Floats v) noexcept {
  return {vreinterpretq_s32_u32(vmovl_u16(vreinterpret_u16_f16(vcvt_f16_f32(v.v))))};
}
inline Floats half_value(Ints code) noexcept { return {vcvt_f32_f16(vreinterpret_f16_s16(vmovn_s32(code.v)))}; }

/// Looks at the low 4 bits of the index only.
inline Ints lookup16(const std::int32_t* table, Ints index) noexcept {
  const auto bytes = reinterpret_cast<const std::uint8_t*>(table);
  const uint8x16x4_t entries = {{vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)}};
  // Entry i is bytes 4i … 4i+3.
  const int32x4_t entry = vandq_s32(index.v, vdupq_n_s32(15));
  const int32x4_t places = vmlaq_s32(vdupq_n_s32(0x03020100), entry, vdupq_n_s32(0x04040404));
  return {vreinterpretq_s32_u8(vqtbl4q_u8(entries, vreinterpretq_u8_s32(places)))};
}
inline Floats lookup16(const float* table, Ints index) noexcept {
  return from_bits(lookup16(reinterpret_cast<const std::int32_t*>(table), index));
}

inline float half_to_float(std::uint16_t code) noexcept {
  return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(code))), 0);
}

inline void transpose4(const float* const* rows, int column, Floats* out) noexcept {
  const float32x4_t r0 = vld1q_f32(rows[0] + column), r1 = vld1q_f32(rows[1] + column);
  const float32x4_t r2 = vld1q_f32(rows[2] + column), r3 = vld1q_f32(rows[3] + column);
  // Columns 0 and 2, columns 1 and 3: rows 0 and 1 or rows 2 and 3 in turn.
  const float64x2_t even01 = vreinterpretq_f64_f32(vtrn1q_f32(r0, r1));
  const float64x2_t even23 = vreinterpretq_f64_f32(vtrn1q_f32(r2, r3));
  const float64x2_t odd01 = vreinterpretq_f64_f32(vtrn2q_f32(r0, r1));
  const float64x2_t odd23 = vreinterpretq_f64_f32(vtrn2q_f32(r2, r3));
  out[0].v = vreinterpretq_f32_f64(vtrn1q_f64(even01, even23));
  out[1].v = vreinterpretq_f32_f64(vtrn1q_f64(odd01, odd23));
  out[2].v = vreinterpretq_f32_f64(vtrn2q_f64(even01, even23));
  out[3].v = vreinterpretq_f32_f64(vtrn2q_f64(odd01, odd23));
}

/// REQUIRES: count is a multiple of 4.
inline void load_transposed(const float* const* rows, int count, Floats* out) noexcept {
  for (int column = 0; column < count; column += 4) transpose4(rows, column, out + column);
}

/// Four bytes, in the low half of the result.
inline uint8x8_t load_32_bits(const void* from) noexcept {
  std::uint32_t word;
  __builtin_memcpy(&word, from, 4);
  return vreinterpret_u8_u32(vdup_n_u32(word));
}

inline Floats load_codes(const std::int8_t* p) noexcept {
  const int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(load_32_bits(p)));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)))};
}
inline void store_floats(Floats v, float* p) noexcept { vst1q_f32(p, v.v); }

/// The low kBytes of each lane, straight from the register: a loop over an array would go through memory.
template <int kBytes>
inline void store_lanes(Ints v, std::byte* const* targets, int offset) noexcept {
  const auto store = [=](int lane, std::int32_t value) { __builtin_memcpy(targets[lane] + offset, &value, kBytes); };
  store(0, vgetq_lane_s32(v.v, 0));
  store(1, vgetq_lane_s32(v.v, 1));
  store(2, vgetq_lane_s32(v.v, 2));
  store(3, vgetq_lane_s32(v.v, 3));
}
inline void store8(Ints v, std::byte* const* targets, int offset) noexcept { store_lanes<1>(v, targets, offset); }
inline void store16(Ints v, std::byte* const* targets, int offset) noexcept { store_lanes<2>(v, targets, offset); }
inline void store32(Ints v, std::byte* const* targets, int offset) noexcept { store_lanes<4>(v, targets, offset); }

}  // namespace
}  // namespace imago::kernels::neon
