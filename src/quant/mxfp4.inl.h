// mxfp4 (OCP MX): 32 weights in E2M1 share a power of two; value = 2^(exponent - 127) · e2m1(code). 4.25 bits per
// weight.

struct MXFP4 {
  static constexpr BlockFormat kFormat = BlockFormat::mxfp4;
  static constexpr int kValues = 32, kGroup = 32, kBits = 4;
  static constexpr ScaleKind kScales = ScaleKind::exponent;
  static constexpr bool kHasOffset = false;
  using Levels = E2M1Levels;

  std::uint8_t exponent;     // E8M0; 255 means NaN in the standard
  std::uint8_t nibbles[16];  // byte j: code j in the low half, code j + 16 in the high half

  BlockScales scales() const noexcept {
    BlockScales s;
    s.subs[0] = exponent;
    return s;
  }

  void levels(std::int8_t* out) const noexcept {
    store_codes(lookup_levels(Levels::kTable, nibble_pair(nibbles)), out);
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
    store_nibbles<16>([&](int i) { return E2M1Levels::code(x[i] * inverse); }, out, 1);
  }
};
static_assert(sizeof(MXFP4) == 17 && alignof(MXFP4) == 1 && std::is_trivially_copyable_v<MXFP4>);
