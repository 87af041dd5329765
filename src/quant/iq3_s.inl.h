// iq3_s: a super-block of 256 weights in 8 sub-blocks of 32; value = scale · (2s + 1) · ±level with a 4-bit s per sub-
// block. Four magnitudes, odd numbers up to 15, are one of 512 entries of a codebook; every weight has a sign. 3.4375
// bits per weight.

struct IQ3_S {
  static constexpr BlockFormat kFormat = BlockFormat::iq3_s;
  static constexpr int kValues = 256, kGroup = 32, kBits = 4;
  static constexpr ScaleKind kScales = ScaleKind::sub_scales;
  static constexpr int kSubBits = 6;
  static constexpr bool kSignedSubs = true;
  static constexpr bool kHasOffset = false;
  using Levels = Iq3SLevels;
  using Use = CodebookUse<kIq3SBook, 32, 31>;

  PackedHalf scale;
  std::uint8_t entries[64];     // per 4 weights the low 8 bits of the entry
  std::uint8_t high_bits[8];    // bit i of byte j: bit 8 of entry 8j + i
  std::uint8_t signs[32];       // bit i of byte j: weight 8j + i is negative
  std::uint8_t packed_subs[4];  // byte j / 2, low half first: s of sub-block j

  BlockScales scales() const noexcept {
    BlockScales s{.scale = code_of(scale)};
    for (int j = 0; j < 8; ++j) s.subs[j] = static_cast<std::uint8_t>(2 * (packed_subs[j / 2] >> 4 * (j % 2) & 15) + 1);
    return s;
  }

  std::uint64_t entry(int i) const noexcept {
    return kIq3SBook.levels[entries[i] | (high_bits[i / 8] >> i % 8 & 1) << 8];
  }
  void levels(std::int8_t* out) const noexcept {
    for (int i = 0; i < 32; ++i) store_signed(entry(2 * i) | entry(2 * i + 1) << 32, signs[i], out + 8 * i);
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    CodebookFit<Use> fit;
    Ints signs[32];
    fit_signed_codebook<Use, Iq3SDigits, 0, false, kWeighted>(x, w, fit, signs);
    store16(half_scale(fit.scale), out, 0);
    for (int j = 0; j < 8; ++j) {
      Ints high = splat_int(0);
      for (int e = 0; e < 8; ++e) {
        const Ints entry = fit.codes[j].entries[e];
        store8(entry, out, 2 + 8 * j + e);
        high = high | shift_left(shift_right(entry, 8), e);
      }
      store8(high, out, 66 + j);
    }
    store_bytes(signs, 32, out, 74);
    store_odd_subs(fit.subs, 8, out, 106);
  }
};
static_assert(sizeof(IQ3_S) == 110 && alignof(IQ3_S) == 1 && std::is_trivially_copyable_v<IQ3_S>);
