// iq1_m: a super-block of 256 weights in 16 sub-blocks of 16; value = scale · (2s + 1) · (t ± 1/8) with a 3-bit s per
// sub-block and a sign of the eighth for every 8 weights. The codebook is that of iq1_s. 1.75 bits per weight.

struct IQ1_M {
  static constexpr BlockFormat kFormat = BlockFormat::iq1_m;
  static constexpr int kValues = 256, kGroup = 16, kBits = 3;
  static constexpr ScaleKind kScales = ScaleKind::sub_scales;
  static constexpr int kSubBits = 6, kUnitExponent = -3;
  static constexpr bool kSignedSubs = true;
  static constexpr bool kHasOffset = false;
  using Levels = Iq1Levels;
  using Use = CodebookUse<kIq1Book, 16, 15, 8>;

  std::uint8_t entries[32];     // per 8 weights the low 8 bits of the entry
  std::uint8_t nibbles[16];     // per 8 weights, low half first: 3 upper bits of the entry, 1 for minus an eighth
  std::uint8_t packed_subs[8];  // four times 16 bits, little-endian: four s, and on top 4 bits of the scale, low first

  unsigned subs_of(int quarter) const noexcept {
    return packed_subs[2 * quarter] | static_cast<unsigned>(packed_subs[2 * quarter + 1]) << 8;
  }
  /// The code of the binary16.
  std::uint16_t scale_code() const noexcept {
    unsigned code = 0;
    for (int quarter = 0; quarter < 4; ++quarter) code |= subs_of(quarter) >> 12 << 4 * quarter;
    return static_cast<std::uint16_t>(code);
  }

  BlockScales scales() const noexcept {
    BlockScales s{.scale = scale_code()};
    for (int j = 0; j < 16; ++j) s.subs[j] = static_cast<std::uint8_t>(2 * (subs_of(j / 4) >> 3 * (j % 4) & 7) + 1);
    return s;
  }

  void levels(std::int8_t* out) const noexcept {
    for (int i = 0; i < 32; ++i) {
      const unsigned nibble = nibbles[i / 2] >> 4 * (i % 2) & 15u;
      store_shifted(kIq1Book.levels[entries[i] | (nibble & 7) << 8], nibble >= 8, out + 8 * i);
    }
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    CodebookFit<Use> fit;
    fit_codebook<Use, Iq1Digits, kUnitExponent, kWeighted>(x, w, fit);
    for (int j = 0; j < 16; ++j) {
      Ints nibbles = splat_int(0);
      for (int e = 0; e < 2; ++e) {
        const Ints entry = fit.codes[j].entries[e];
        store8(entry, out, 2 * j + e);
        nibbles = nibbles | shift_left(shift_right(entry, 8) | shift_left(fit.codes[j].down[e], 3), 4 * e);
      }
      store8(nibbles, out, 32 + j);
    }
    const Ints code = half_scale(fit.scale);
    for (int quarter = 0; quarter < 4; ++quarter) {
      Ints bits = shift_left(shift_right(code, 4 * quarter) & splat_int(15), 12);
      for (int j = 0; j < 4; ++j) bits = bits | shift_left(fit.subs[4 * quarter + j], 3 * j);
      store16(bits, out, 48 + 2 * quarter);
    }
  }
};
static_assert(sizeof(IQ1_M) == 56 && alignof(IQ1_M) == 1 && std::is_trivially_copyable_v<IQ1_M>);
