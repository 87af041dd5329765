// iq2_s: a super-block of 256 weights in 16 sub-blocks of 16; value = scale · (2s + 1) / 8 · ±level with a 4-bit s per
// sub-block. As iq2_xs, but with a codebook of 1024 entries and a sign for every weight. 2.5625 bits per weight.

struct IQ2_S {
  static constexpr BlockFormat kFormat = BlockFormat::iq2_s;
  static constexpr int kValues = 256, kGroup = 16, kBits = 3;
  static constexpr ScaleKind kScales = ScaleKind::sub_scales;
  static constexpr int kSubBits = 6, kUnitExponent = -3;
  static constexpr bool kSignedSubs = true;
  static constexpr bool kHasOffset = false;
  using Levels = Iq2Levels;
  using Use = CodebookUse<kIq2SBook, 16, 31>;

  PackedHalf scale;
  std::uint8_t entries[32];     // per 8 weights the low 8 bits of the entry
  std::uint8_t signs[32];       // bit i of byte j: weight 8j + i is negative
  std::uint8_t high_bits[8];    // byte j: upper 2 bits of entries 4j … 4j + 3 from the low bits up
  std::uint8_t packed_subs[8];  // byte j / 2, low half first: s of sub-block j

  BlockScales scales() const noexcept {
    BlockScales s{.scale = code_of(scale)};
    take_odd_subs(packed_subs, s);
    return s;
  }

  void levels(std::int8_t* out) const noexcept {
    for (int i = 0; i < 32; ++i) {
      const int entry = entries[i] | (high_bits[i / 4] >> 2 * (i % 4) & 3) << 8;
      store_signed(kIq2SBook.levels[entry], signs[i], out + 8 * i);
    }
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    CodebookFit<Use> fit;
    Ints signs[32];
    fit_signed_codebook<Use, Iq2Digits, kUnitExponent, false, kWeighted>(x, w, fit, signs);
    store16(half_scale(fit.scale), out, 0);
    for (int j = 0; j < 8; ++j) {
      Ints high = splat_int(0);
      for (int e = 0; e < 4; ++e) {
        const Ints entry = fit.codes[2 * j + e / 2].entries[e % 2];
        store8(entry, out, 2 + 4 * j + e);
        high = high | shift_left(shift_right(entry, 8), 2 * e);
      }
      store8(high, out, 66 + j);
    }
    store_bytes(signs, 32, out, 34);
    store_odd_subs(fit.subs, 16, out, 74);
  }
};
static_assert(sizeof(IQ2_S) == 82 && alignof(IQ2_S) == 1 && std::is_trivially_copyable_v<IQ2_S>);
