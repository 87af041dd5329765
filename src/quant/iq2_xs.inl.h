// iq2_xs: a super-block of 256 weights in 16 sub-blocks of 16; value = scale · (2s + 1) / 8 · ±level with a 4-bit s per
// sub-block. As iq2_xxs, but with a codebook of 512 entries. 2.3125 bits per weight.

/// Two 4-bit sub-scales to a byte, low half first, as the odd integers that they stand for: iq2_xs, iq2_s.
inline void take_odd_subs(const std::uint8_t* packed, BlockScales& s) noexcept {
  for (int j = 0; j < 16; ++j) s.subs[j] = static_cast<std::uint8_t>(2 * (packed[j / 2] >> 4 * (j % 2) & 15) + 1);
}

/// The reverse, of `count` sub-scales s.
inline void store_odd_subs(const Ints* subs, int count, std::byte* const* out, int offset) noexcept {
  for (int j = 0; j < count; j += 2) store8(subs[j] | shift_left(subs[j + 1], 4), out, offset + j / 2);
}

struct IQ2_XS {
  static constexpr BlockFormat kFormat = BlockFormat::iq2_xs;
  static constexpr int kValues = 256, kGroup = 16, kBits = 3;
  static constexpr ScaleKind kScales = ScaleKind::sub_scales;
  static constexpr int kSubBits = 6, kUnitExponent = -3;
  static constexpr bool kSignedSubs = true;
  static constexpr bool kHasOffset = false;
  using Levels = Iq2Levels;
  using Use = CodebookUse<kIq2XsBook, 16, 31>;

  PackedHalf scale;
  std::uint8_t entries[64];     // per 8 weights 16 bits, little-endian: the entry in the low 9, seven signs above
  std::uint8_t packed_subs[8];  // byte j / 2, low half first: s of sub-block j

  BlockScales scales() const noexcept {
    BlockScales s{.scale = code_of(scale)};
    take_odd_subs(packed_subs, s);
    return s;
  }

  void levels(std::int8_t* out) const noexcept {
    for (int i = 0; i < 32; ++i) {
      const unsigned both = entries[2 * i] | static_cast<unsigned>(entries[2 * i + 1]) << 8;
      store_signed(kIq2XsBook.levels[both & 511], even_signs(both >> 9), out + 8 * i);
    }
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    CodebookFit<Use> fit;
    Ints signs[32];
    fit_signed_codebook<Use, Iq2Digits, kUnitExponent, true, kWeighted>(x, w, fit, signs);
    store16(half_scale(fit.scale), out, 0);
    for (int i = 0; i < 32; ++i) {
      store16(fit.codes[i / 2].entries[i % 2] | shift_left(signs[i] & splat_int(127), 9), out, 2 + 2 * i);
    }
    store_odd_subs(fit.subs, 16, out, 66);
  }
};
static_assert(sizeof(IQ2_XS) == 74 && alignof(IQ2_XS) == 1 && std::is_trivially_copyable_v<IQ2_XS>);
