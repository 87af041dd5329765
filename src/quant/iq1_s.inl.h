// iq1_s: a super-block of 256 weights in 8 sub-blocks of 32; value = scale · (2s + 1) · (t ± 1/8) with a 3-bit s and
// one sign of the eighth per sub-block. Eight t of -1, 0 or 1 are one of 2048 entries of a codebook. 1.5625 bits per
// weight.

struct IQ1_S {
  static constexpr BlockFormat kFormat = BlockFormat::iq1_s;
  static constexpr int kValues = 256, kGroup = 32, kBits = 3;
  static constexpr ScaleKind kScales = ScaleKind::sub_scales;
  static constexpr int kSubBits = 6, kUnitExponent = -3;
  static constexpr bool kSignedSubs = true;
  static constexpr bool kHasOffset = false;
  using Levels = Iq1Levels;
  using Use = CodebookUse<kIq1Book, 32, 15, 32>;

  PackedHalf scale;
  std::uint8_t entries[32];  // per 8 weights the low 8 bits of the entry
  std::uint8_t
      rest[16];  // per 32 weights 16 bits, little-endian: 3 upper bits of four entries, s, 1 for minus an eighth

  unsigned rest_of(int j) const noexcept { return rest[2 * j] | static_cast<unsigned>(rest[2 * j + 1]) << 8; }

  BlockScales scales() const noexcept {
    BlockScales s{.scale = code_of(scale)};
    for (int j = 0; j < 8; ++j) s.subs[j] = static_cast<std::uint8_t>(2 * (rest_of(j) >> 12 & 7) + 1);
    return s;
  }

  void levels(std::int8_t* out) const noexcept {
    for (int i = 0; i < 32; ++i) {
      const unsigned of_sub = rest_of(i / 4);
      const unsigned entry = entries[i] | (of_sub >> 3 * (i % 4) & 7) << 8;
      store_shifted(kIq1Book.levels[entry], of_sub >> 15 != 0, out + 8 * i);
    }
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    CodebookFit<Use> fit;
    fit_codebook<Use, Iq1Digits, kUnitExponent, kWeighted>(x, w, fit);
    store16(half_scale(fit.scale), out, 0);
    for (int j = 0; j < 8; ++j) {
      Ints bits = shift_left(fit.subs[j], 12) | shift_left(fit.codes[j].down[0], 15);
      for (int e = 0; e < 4; ++e) {
        const Ints entry = fit.codes[j].entries[e];
        store8(entry, out, 2 + 4 * j + e);
        bits = bits | shift_left(shift_right(entry, 8), 3 * e);
      }
      store16(bits, out, 34 + 2 * j);
    }
  }
};
static_assert(sizeof(IQ1_S) == 50 && alignof(IQ1_S) == 1 && std::is_trivially_copyable_v<IQ1_S>);
