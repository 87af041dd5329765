#pragma once

// Thirty-two codes of one byte each: the counterpart of Bytes in quant/lanes_scalar.h.

#include <arm_neon.h>

#include <cstdint>

namespace imago::kernels::neon {
namespace {  // each file has its own: they differ in flags

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

}  // namespace
}  // namespace imago::kernels::neon
