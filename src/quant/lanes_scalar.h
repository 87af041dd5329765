#pragma once

// The vocabulary of the *.inl.h algorithms, with one lane.
//
// An algorithm written over Floats, Ints and Mask says what happens to one block (or one value); compiled with this
// header it does so for one at a time, with the lanes.h of kernels/neon for 4, of kernels/avx2 for 8 and of
// kernels/avx512 for 16. Lanes never mix and every operation is a single IEEE operation, so all of them give the same
// bits. That is why there is no fused multiply-add here, and why min_of and max_of spell out which operand an unordered
// comparison picks.

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "imago/numeric.h"

namespace imago::quant {

inline constexpr int kLanes = 1;

using Floats = float;
using Ints = std::int32_t;
using Mask = bool;

inline Floats splat(float v) noexcept { return v; }
inline Ints splat_int(std::int32_t v) noexcept { return v; }

inline Floats select(Mask m, Floats a, Floats b) noexcept { return m ? a : b; }
inline Ints select(Mask m, Ints a, Ints b) noexcept { return m ? a : b; }
inline Mask both(Mask a, Mask b) noexcept { return a && b; }
inline Mask either(Mask a, Mask b) noexcept { return a || b; }
inline bool any(Mask m) noexcept { return m; }

inline Floats min_of(Floats a, Floats b) noexcept { return a < b ? a : b; }
inline Floats max_of(Floats a, Floats b) noexcept { return a > b ? a : b; }
inline Floats abs_of(Floats a) noexcept { return std::fabs(a); }
inline Ints min_of(Ints a, Ints b) noexcept { return a < b ? a : b; }
inline Ints max_of(Ints a, Ints b) noexcept { return a > b ? a : b; }

/// Towards zero. REQUIRES: within int32.
inline Ints truncate(Floats v) noexcept { return static_cast<Ints>(v); }
inline Floats to_floats(Ints v) noexcept { return static_cast<Floats>(v); }
inline Ints bits_of(Floats v) noexcept { return std::bit_cast<Ints>(v); }
inline Floats from_bits(Ints v) noexcept { return std::bit_cast<Floats>(v); }

inline Ints shift_left(Ints v, int by) noexcept { return static_cast<Ints>(static_cast<std::uint32_t>(v) << by); }
/// Zeros move in.
inline Ints shift_right(Ints v, int by) noexcept { return static_cast<Ints>(static_cast<std::uint32_t>(v) >> by); }

/// binary16 codes in the low 16 bits, rounded to nearest even, and back.
inline Ints half_bits(Floats v) noexcept { return to_half(v).bits; }
inline Floats half_value(Ints code) noexcept { return from_half(Half{static_cast<std::uint16_t>(code)}); }

/// table[index], 0 <= index < 16.
inline Floats lookup16(const float* table, Ints index) noexcept { return table[index]; }
inline Ints lookup16(const std::int32_t* table, Ints index) noexcept { return table[index]; }

/// One binary16 code; not lanes, but processors have an instruction for it.
inline float half_to_float(std::uint16_t code) noexcept { return from_half(Half{code}); }

/// out[i], i < kLanes, has value column + i of the row of each lane: rows[lane][column + i].
inline void transpose(const float* const* rows, int column, Floats* out) noexcept { *out = rows[0][column]; }

/// kLanes consecutive codes as floats, and kLanes consecutive floats.
inline Floats load_codes(const std::int8_t* p) noexcept { return static_cast<float>(*p); }
inline void store_floats(Floats v, float* p) noexcept { *p = v; }

/// Writes the low bytes of each lane to targets[lane] + offset.
template <int kBytes>
inline void store_lanes(Ints v, std::byte* const* targets, int offset) noexcept {
  std::memcpy(targets[0] + offset, &v, kBytes);
}

/// Thirty-two codes of one byte each, for taking blocks apart. Arithmetic wraps at 256.
struct Bytes {
  std::uint8_t v[32];
};

/// Applies f to every index.
template <class F>
inline Bytes make_bytes(F f) noexcept {
  Bytes b;
  for (int i = 0; i < 32; ++i) b.v[i] = static_cast<std::uint8_t>(f(i));
  return b;
}

inline Bytes load_bytes(const std::uint8_t* p) noexcept {
  return make_bytes([=](int i) { return p[i]; });
}
inline void store_codes(Bytes b, std::int8_t* p) noexcept { std::memcpy(p, b.v, sizeof b.v); }
inline Bytes low_bits(Bytes b, int mask) noexcept {
  return make_bytes([&](int i) { return b.v[i] & mask; });
}
inline Bytes shift_right(Bytes b, int by) noexcept {
  return make_bytes([&](int i) { return b.v[i] >> by; });
}
inline Bytes shift_left(Bytes b, int by) noexcept {
  return make_bytes([&](int i) { return b.v[i] << by; });
}
inline Bytes join(Bytes a, Bytes b) noexcept {
  return make_bytes([&](int i) { return a.v[i] | b.v[i]; });
}
inline Bytes plus(Bytes a, Bytes b) noexcept {
  return make_bytes([&](int i) { return a.v[i] + b.v[i]; });
}
inline Bytes minus(Bytes b, int value) noexcept {
  return make_bytes([&](int i) { return b.v[i] - value; });
}
/// 1 where b >= value (unsigned), else 0.
inline Bytes at_least(Bytes b, int value) noexcept {
  return make_bytes([&](int i) { return b.v[i] >= value ? 1 : 0; });
}
/// 16 packed bytes: their low halves, then their high halves.
inline Bytes nibble_pair(const std::uint8_t* p) noexcept {
  return make_bytes([=](int i) { return i < 16 ? p[i] & 15 : p[i - 16] >> 4; });
}
/// `value` where bit i of the 32 bits at p is set, lowest bit of the first byte first, else 0.
inline Bytes bits32(const std::uint8_t* p, int value) noexcept {
  return make_bytes([=](int i) { return (p[i / 8] >> (i % 8) & 1) != 0 ? value : 0; });
}
/// table[index], 0 <= index < 16.
inline Bytes lookup_levels(const std::int8_t* table, Bytes index) noexcept {
  return make_bytes([&](int i) { return table[index.v[i]]; });
}
/// Quarters of 8 codes: 0 1 2 3 becomes 0 2 1 3.
inline Bytes swap_middle_quarters(Bytes b) noexcept {
  return make_bytes([&](int i) { return b.v[i < 8 || i >= 24 ? i : (i < 16 ? i + 8 : i - 8)]; });
}
/// The first code of each half, then the second of each, and so on.
inline Bytes interleave_halves(Bytes b) noexcept {
  return make_bytes([&](int i) { return b.v[i / 2 + i % 2 * 16]; });
}

}  // namespace imago::quant
