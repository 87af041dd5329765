#pragma once

// Loads and stores of the lanes: neighbours in memory become neighbouring lanes. Addresses need no alignment. The same
// names with 8 lanes: kernels/avx2/lanes_io.h.

#include "kernels/neon/lanes.h"

namespace imago::kernels::neon {
namespace {  // each file has its own: they differ in flags

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
  // All four fields at the top of a word. Those of one bit may begin amid a byte.
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
