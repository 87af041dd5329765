#pragma once

// The vocabulary of quant/lanes_scalar.h with 4 lanes. For files with NEON flags only.

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace imago::kernels::neon {
namespace {  // each file has its own: they differ in flags

// Thirty-two codes of one byte each: the counterpart of Bytes in quant/lanes_scalar.h.

struct Bytes {
  uint8x16_t first, second;
};

/// Applies f to both halves.
template <class F>
inline Bytes in_halves(Bytes b, F f) noexcept {
  return {f(b.first), f(b.second)};
}

inline Bytes load_bytes(const std::uint8_t* p) noexcept { return {vld1q_u8(p), vld1q_u8(p + 16)}; }
inline void store_codes(Bytes b, std::int8_t* p) noexcept {
  vst1q_s8(p, vreinterpretq_s8_u8(b.first));
  vst1q_s8(p + 16, vreinterpretq_s8_u8(b.second));
}
inline Bytes low_bits(Bytes b, int mask) noexcept {
  const uint8x16_t masks = vdupq_n_u8(static_cast<std::uint8_t>(mask));
  return in_halves(b, [=](uint8x16_t v) { return vandq_u8(v, masks); });
}
inline Bytes shift_right(Bytes b, int by) noexcept {
  const int8x16_t distance = vdupq_n_s8(static_cast<std::int8_t>(-by));  // negative: to the right
  return in_halves(b, [=](uint8x16_t v) { return vshlq_u8(v, distance); });
}
inline Bytes shift_left(Bytes b, int by) noexcept {
  const int8x16_t distance = vdupq_n_s8(static_cast<std::int8_t>(by));
  return in_halves(b, [=](uint8x16_t v) { return vshlq_u8(v, distance); });
}
inline Bytes join(Bytes a, Bytes b) noexcept { return {vorrq_u8(a.first, b.first), vorrq_u8(a.second, b.second)}; }
inline Bytes plus(Bytes a, Bytes b) noexcept { return {vaddq_u8(a.first, b.first), vaddq_u8(a.second, b.second)}; }
inline Bytes minus(Bytes b, int value) noexcept {
  const uint8x16_t values = vdupq_n_u8(static_cast<std::uint8_t>(value));
  return in_halves(b, [=](uint8x16_t v) { return vsubq_u8(v, values); });
}
inline Bytes at_least(Bytes b, int value) noexcept {
  const uint8x16_t bound = vdupq_n_u8(static_cast<std::uint8_t>(value));
  return in_halves(b, [=](uint8x16_t v) { return vshrq_n_u8(vcgeq_u8(v, bound), 7); });
}
inline Bytes nibble_pair(const std::uint8_t* p) noexcept {
  const uint8x16_t packed = vld1q_u8(p);
  return {vandq_u8(packed, vdupq_n_u8(15)), vshrq_n_u8(packed, 4)};
}
inline Bytes bits32(const std::uint8_t* p, int value) noexcept {
  const uint8x16_t bit_of = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
  const Bytes copies = {vcombine_u8(vdup_n_u8(p[0]), vdup_n_u8(p[1])), vcombine_u8(vdup_n_u8(p[2]), vdup_n_u8(p[3]))};
  return low_bits(in_halves(copies, [=](uint8x16_t v) { return vtstq_u8(v, bit_of); }), value);
}
inline Bytes lookup_levels(const std::int8_t* table, Bytes index) noexcept {
  const uint8x16_t levels = vreinterpretq_u8_s8(vld1q_s8(table));
  return in_halves(index, [=](uint8x16_t v) { return vqtbl1q_u8(levels, v); });
}
inline Bytes swap_middle_quarters(Bytes b) noexcept {
  return {vcombine_u8(vget_low_u8(b.first), vget_low_u8(b.second)),
          vcombine_u8(vget_high_u8(b.first), vget_high_u8(b.second))};
}
inline Bytes interleave_halves(Bytes b) noexcept {
  return {vzip1q_u8(b.first, b.second), vzip2q_u8(b.first, b.second)};
}

// ---- lanes

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

/// a · b + c, rounded once.
inline Floats fused(Floats a, Floats b, Floats c) noexcept { return {vfmaq_f32(c.v, a.v, b.v)}; }

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

inline void transpose(const float* const* rows, int column, Floats* out) noexcept {
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

// ---- loads and stores: neighbours in memory become neighbouring lanes. Addresses need no alignment.

inline Floats load_floats(const float* from) noexcept { return {vld1q_f32(from)}; }

inline uint8x8_t load_64_bits(const std::byte* from) noexcept {
  return vld1_u8(reinterpret_cast<const std::uint8_t*>(from));
}
inline uint8x16_t load_128_bits(const std::byte* from) noexcept {
  return vld1q_u8(reinterpret_cast<const std::uint8_t*>(from));
}
inline void store_64_bits(uint8x8_t v, std::byte* to) noexcept { vst1_u8(reinterpret_cast<std::uint8_t*>(to), v); }
inline void store_128_bits(uint8x16_t v, std::byte* to) noexcept { vst1q_u8(reinterpret_cast<std::uint8_t*>(to), v); }

/// Integers of 8, 16 or 32 bits, widened to the lane. The sign bit of the signed ones fills the upper bits.
inline Ints load_u8(const std::byte* from) noexcept {
  return {vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(load_32_bits(from)))))};
}
inline Ints load_i8(const std::byte* from) noexcept {
  return {vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(load_32_bits(from)))))};
}
inline Ints load_u16(const std::byte* from) noexcept {
  return {vreinterpretq_s32_u32(vmovl_u16(vreinterpret_u16_u8(load_64_bits(from))))};
}
inline Ints load_i16(const std::byte* from) noexcept { return {vmovl_s16(vreinterpret_s16_u8(load_64_bits(from)))}; }
inline Ints load_32(const std::byte* from) noexcept { return {vreinterpretq_s32_u8(load_128_bits(from))}; }

/// binary16 codes as floats and back, rounded to nearest even.
inline Floats load_halves(const std::byte* from) noexcept {
  return {vcvt_f32_f16(vreinterpret_f16_u8(load_64_bits(from)))};
}
inline void store_halves(Floats v, std::byte* to) noexcept {
  store_64_bits(vreinterpret_u8_f16(vcvt_f16_f32(v.v)), to);
}

/// 64-bit numbers as floats, rounded to nearest even.
inline Floats load_doubles(const std::byte* from) noexcept {
  const float64x2_t low = vreinterpretq_f64_u8(load_128_bits(from));
  const float64x2_t high = vreinterpretq_f64_u8(load_128_bits(from + 16));
  return {vcvt_high_f32_f64(vcvt_f32_f64(low), high)};
}
template <class Integer>
inline Floats load_64(const std::byte* from) noexcept {  // one by one: by way of double they would be rounded twice
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    Integer code;
    __builtin_memcpy(&code, from + i * 8, 8);
    lanes[i] = static_cast<float>(code);
  }
  return {vld1q_f32(lanes)};
}

/// Fields `first` … `first` + kLanes - 1 of kBits bits each, the first weight in the top bits of the first byte.
/// REQUIRES: `first` is a multiple of kLanes.
template <int kBits>
inline Ints load_fields(const std::byte* packed, int first) noexcept {
  static_assert(kBits == 1 || kBits == 2 || kBits == 4);
  // All four fields at the top of a word. Those of one bit may begin inside a byte.
  std::uint32_t word = 0;
  __builtin_memcpy(&word, packed + first * kBits / 8, kBits == 4 ? 2 : 1);
  word = __builtin_bswap32(word) << (first * kBits % 8);
  const std::int32_t distances[kLanes] = {kBits - 32, 2 * kBits - 32, 3 * kBits - 32, 4 * kBits - 32};
  const uint32x4_t shifted = vshlq_u32(vdupq_n_u32(word), vld1q_s32(distances));  // negative: to the right
  return {vreinterpretq_s32_u32(vandq_u32(shifted, vdupq_n_u32((1 << kBits) - 1)))};
}

/// The low 8, 16 or 32 bits of each lane.
inline void store_low8(Ints v, std::byte* to) noexcept {
  const int16x4_t halves = vmovn_s32(v.v);
  const int8x8_t bytes = vmovn_s16(vcombine_s16(halves, halves));
  const std::uint32_t word = vget_lane_u32(vreinterpret_u32_s8(bytes), 0);
  __builtin_memcpy(to, &word, 4);
}
inline void store_low16(Ints v, std::byte* to) noexcept { store_64_bits(vreinterpret_u8_s16(vmovn_s32(v.v)), to); }
inline void store_32(Ints v, std::byte* to) noexcept { store_128_bits(vreinterpretq_u8_s32(v.v), to); }

/// Each lane as a signed integer or a double of 64 bits.
inline void store_i64(Ints v, std::byte* to) noexcept {
  store_128_bits(vreinterpretq_u8_s64(vmovl_s32(vget_low_s32(v.v))), to);
  store_128_bits(vreinterpretq_u8_s64(vmovl_high_s32(v.v)), to + 16);
}
inline void store_doubles(Floats v, std::byte* to) noexcept {
  store_128_bits(vreinterpretq_u8_f64(vcvt_f64_f32(vget_low_f32(v.v))), to);
  store_128_bits(vreinterpretq_u8_f64(vcvt_high_f64_f32(v.v)), to + 16);
}

/// to[j] = from[2j] · factor + from[2j + 1] for 4 · kLanes bytes. `to` may be `from` or lie before it.
/// REQUIRES: the results fit a byte, 0 < factor < 128.
inline void join_pairs(const std::byte* from, int factor, std::byte* to) noexcept {
  const uint8x8x2_t pairs = vld2_u8(reinterpret_cast<const std::uint8_t*>(from));
  store_64_bits(vmla_u8(pairs.val[1], pairs.val[0], vdup_n_u8(static_cast<std::uint8_t>(factor))), to);
}

}  // namespace
}  // namespace imago::kernels::neon
