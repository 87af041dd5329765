// Small steps that every encoder shares. Compiled anew in the namespace of each vocabulary (quant/lanes_scalar.h).

/// The code of a binary16 inside a block.
inline std::uint16_t code_of(PackedHalf half) noexcept {
  std::uint16_t code;
  __builtin_memcpy(&code, half.bytes, 2);
  return code;
}

/// out[i] has value i of the row of each lane. REQUIRES: count is a multiple of kLanes.
inline void load_transposed(const float* const* rows, int count, Floats* out) noexcept {
  for (int column = 0; column < count; column += kLanes) transpose(rows, column, out + column);
}

/// Nearest integer, ties to even. REQUIRES: |t| < 2^22. Adding 1.5 · 2^23 leaves no bits for the fraction.
inline Floats round_even(Floats t) noexcept {
  const Floats magic = splat(12582912.0f);
  return (t + magic) - magic;
}

/// Nearest integer, halves away from zero. REQUIRES: within int32.
inline Floats round_away(Floats t) noexcept {
  const Floats whole = to_floats(truncate(t));
  const Floats step = select(t < splat(0.0f), splat(-1.0f), splat(1.0f));
  return select(abs_of(t - whole) >= splat(0.5f), whole + step, whole);
}

inline Floats clamp(Floats v, float low, float high) noexcept { return min_of(max_of(v, splat(low)), splat(high)); }

/// 1 / s, or 0 where s is 0 or so small that the quotient would overflow.
inline Floats reciprocal(Floats s) noexcept { return select(abs_of(s) > splat(1e-36f), splat(1.0f) / s, splat(0.0f)); }

/// numerator / denominator, 0 where the denominator is not positive.
inline Floats ratio(Floats numerator, Floats denominator) noexcept {
  return select(denominator > splat(0.0f), numerator / denominator, splat(0.0f));
}

/// Limits a scale to what binary16 holds: no block ever stores an infinite scale.
inline Ints half_scale(Floats s) noexcept { return half_bits(clamp(s, -65504.0f, 65504.0f)); }

/// What half_scale leaves of s.
inline Floats through_half(Floats s) noexcept { return half_value(half_scale(s)); }

/// NaN becomes 0 and infinities the largest float, so that everything after this is finite arithmetic.
inline Floats finite(Floats v) noexcept {
  const Floats number = select(v == v, v, splat(0.0f));
  return clamp(number, -3.402823466e38f, 3.402823466e38f);
}

/// The weight of largest magnitude, with its sign; the first one on ties.
inline Floats extremum(const Floats* x, int count) noexcept {
  Floats magnitude = splat(0.0f);
  Floats value = splat(0.0f);
  for (int i = 0; i < count; ++i) {
    const Floats a = abs_of(x[i]);
    const Mask larger = a > magnitude;
    magnitude = select(larger, a, magnitude);
    value = select(larger, x[i], value);
  }
  return value;
}

inline void store8(Ints v, std::byte* const* out, int offset) noexcept { store_lanes<1>(v, out, offset); }
inline void store16(Ints v, std::byte* const* out, int offset) noexcept { store_lanes<2>(v, out, offset); }
inline void store32(Ints v, std::byte* const* out, int offset) noexcept { store_lanes<4>(v, out, offset); }

/// Writes `count` bytes per lane, four at a time. REQUIRES: count is a multiple of 4, each byte within 0..255.
inline void store_bytes(const Ints* bytes, int count, std::byte* const* out, int offset) noexcept {
  for (int i = 0; i < count; i += 4) {
    const Ints low = bytes[i] | shift_left(bytes[i + 1], 8);
    const Ints high = bytes[i + 2] | shift_left(bytes[i + 3], 8);
    store32(low | shift_left(high, 16), out, offset + i);
  }
}

/// Byte j, of kApart, has code j in its low half and code j + kApart in its high half.
template <int kApart, class CodeOf>
inline void store_nibbles(CodeOf code_of, std::byte* const* out, int offset) noexcept {
  for (int j = 0; j < kApart; j += 4) {
    Ints bytes[4];
    for (int k = 0; k < 4; ++k) bytes[k] = code_of(j + k) | shift_left(code_of(j + k + kApart), 4);
    store_bytes(bytes, 4, out, offset + j);
  }
}
