#pragma once

// What products need beyond lanes.h. A *quad* is four bytes in one lane: four columns of the row that the lane stands
// for.

#include "kernels/neon/lanes.h"

namespace imago::kernels::neon {
namespace {  // each file has its own: they differ in flags

inline constexpr int kRegisters = 32;
/// lookup16 is a mask, a multiply-add and a look-up in four registers, which takes several cycles.
inline constexpr bool kCheapLookup = false;

/// Bytes as the upper halves of binary16 codes, and E4M3 codes as binary16 of 2^-8 of their value (NaN is not kept).
inline Floats upper_bytes_of_halves(const std::byte* from) noexcept {
  const uint16x4_t halves = vget_low_u16(vshll_n_u8(load_32_bits(from), 8));
  return {vcvt_f32_f16(vreinterpret_f16_u16(halves))};
}
inline Floats e4m3_in_halves(const std::byte* from) noexcept {
  const int16x4_t wide =
      vget_low_s16(vmovl_s8(vreinterpret_s8_u8(load_32_bits(from))));  // the sign fills the upper byte
  const uint16x4_t moved = vreinterpret_u16_s16(vshl_n_s16(wide, 7));
  const uint16x4_t halves =
      vbsl_u16(vdup_n_u16(0x8000), vreinterpret_u16_s16(wide), vand_u16(moved, vdup_n_u16(0x3F80)));
  return {vcvt_f32_f16(vreinterpret_f16_u16(halves))};
}

/// load_32 into a register, where it stays: of a value that is shifted many ways the compiler would otherwise load it
/// anew for each.
inline Ints load_quads_once(const std::byte* from) noexcept {
  Ints v = load_32(from);
  asm("" : "+w"(v.v));
  return v;
}
/// table[index] for every byte, 0 <= index < 16.
inline Ints lookup_bytes(const std::int8_t* table, Ints index) noexcept {
  return {vreinterpretq_s32_s8(vqtbl1q_s8(vld1q_s8(table), vreinterpretq_u8_s32(index.v)))};
}
inline Ints flip_bits(Ints v, std::int32_t pattern) noexcept { return {veorq_s32(v.v, vdupq_n_s32(pattern))}; }
inline Ints minus_bytes(Ints v, int value) noexcept {
  const int8x16_t values = vdupq_n_s8(static_cast<std::int8_t>(value));
  return {vreinterpretq_s32_s8(vsubq_s8(vreinterpretq_s8_s32(v.v), values))};
}
/// The first `count` lanes.
inline void store_some(Floats v, float* to, int count) noexcept {
  if (count == kLanes) return store_floats(v, to);
  float lanes[kLanes];
  store_floats(v, lanes);
  for (int i = 0; i < count; ++i) to[i] = lanes[i];
}

/// sum + Σ over the four bytes of each lane of signed · signed.
inline Ints dot_signed(Ints sum, Ints codes, Ints x) noexcept {
  return {vdotq_s32(sum.v, vreinterpretq_s8_s32(codes.v), vreinterpretq_s8_s32(x.v))};
}
/// The same of unsigned · signed, which holds for codes up to 127; whole bytes go through dot_signed.
inline constexpr bool kWholeBytes = false;
inline Ints dot_unsigned(Ints sum, Ints codes, Ints x) noexcept { return dot_signed(sum, codes, x); }

}  // namespace
}  // namespace imago::kernels::neon
