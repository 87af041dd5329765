// 32 weights in E2M1 under a power of two. The levels are doubled to integers, so the factor here is half the scale.

/// 2^(exponent - 128). The two smallest are subnormal.
inline float half_of_e8m0(std::uint8_t exponent) noexcept {
  const std::uint32_t bits = exponent < 2 ? 0x00200000u << exponent : static_cast<std::uint32_t>(exponent - 1) << 23;
  return __builtin_bit_cast(float, bits);
}

template <>
struct BlockCodec<MXFP4> {
  static constexpr int kGroup = 32;
  static constexpr bool kHasOffset = false;

  static void expand(const MXFP4& block, Expanded& out) noexcept {
    out.scales[0] = half_of_e8m0(block.exponent);
    store_codes(lookup_levels(E2M1Levels::kCodes, nibble_pair(block.nibbles)), out.codes);
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    // The standard exponent puts the largest weight within 4..8 units, where the levels end at 6; one more or one less
    // is often better. From 2 on the factor and its inverse are normal; up to 252 the largest level times it is finite.
    const Floats peak = abs_of(extremum(x, 32));
    const Ints standard = shift_right(bits_of(peak), 23) - splat_int(2);
    Floats least = splat(__builtin_inff());
    Ints exponent = splat_int(2);
    Floats factor = splat(1.0f);
    for (int step = 0; step < 3; ++step) {
      const Ints candidate =
          min_of(max_of(standard + splat_int(step == 0 ? 0 : 2 * step - 3), splat_int(2)), splat_int(252));
      const Floats half = from_bits(shift_left(candidate - splat_int(1), 23));
      const Floats inverse = splat(1.0f) / half;
      Floats error = splat(0.0f);
      for (int i = 0; i < 32; ++i) {
        const Floats t = x[i] * inverse;  // errors in units of the factor cannot overflow
        const Floats e = t - E2M1Levels::nearest(t);
        error = error + (kWeighted ? w[i] * (e * e) : e * e);
      }
      // Compare in units of the standard exponent's factor: a step of one in the exponent is a factor of 4 in the
      // square.
      const Floats unit = to_floats(shift_left(splat_int(1), step == 0 ? 2 : 4 * step - 4));
      const Mask better = error * unit < least;
      least = select(better, error * unit, least);
      exponent = select(better, candidate, exponent);
      factor = select(better, half, factor);
    }
    const Floats inverse = splat(1.0f) / factor;
    store8(select(peak > splat(0.0f), exponent, splat_int(0)), out, 0);
    for (int j = 0; j < 16; ++j) {
      const Ints low = E2M1Levels::code(x[j] * inverse);
      const Ints high = E2M1Levels::code(x[j + 16] * inverse);
      store8(low | shift_left(high, 4), out, 1 + j);
    }
  }
};
