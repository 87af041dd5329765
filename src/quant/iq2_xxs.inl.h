// iq2_xxs: a super-block of 256 weights in 8 sub-blocks of 32; value = scale · (2s + 1) / 8 · ±level with a 4-bit s per
// sub-block. Eight magnitudes of 8, 25 or 43 are one of 256 entries of a codebook, and seven bits say which of them are
// negative: an even number always is. 2.0625 bits per weight.

struct IQ2_XXS {
  static constexpr BlockFormat kFormat = BlockFormat::iq2_xxs;
  static constexpr int kValues = 256, kGroup = 32, kBits = 3;
  static constexpr ScaleKind kScales = ScaleKind::sub_scales;
  static constexpr int kSubBits = 6, kUnitExponent = -3;
  static constexpr bool kSignedSubs = true;
  static constexpr bool kHasOffset = false;
  using Levels = Iq2Levels;
  using Use = CodebookUse<kIq2XxsBook, 32, 31>;

  PackedHalf scale;
  std::uint8_t groups[64];  // per 32 weights four entries, then a word: seven signs for each entry, and s on top

  std::uint32_t word(int j) const noexcept { return load_word(groups + 8 * j + 4); }

  BlockScales scales() const noexcept {
    BlockScales s{.scale = code_of(scale)};
    for (int j = 0; j < 8; ++j) s.subs[j] = static_cast<std::uint8_t>(2 * (word(j) >> 28) + 1);
    return s;
  }

  void levels(std::int8_t* out) const noexcept {
    for (int i = 0; i < 32; ++i) {
      const unsigned seven = word(i / 4) >> 7 * (i % 4) & 127;
      store_signed(kIq2XxsBook.levels[groups[i / 4 * 8 + i % 4]], even_signs(seven), out + 8 * i);
    }
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    CodebookFit<Use> fit;
    Ints signs[32];
    fit_signed_codebook<Use, Iq2Digits, kUnitExponent, true, kWeighted>(x, w, fit, signs);
    store16(half_scale(fit.scale), out, 0);
    for (int j = 0; j < 8; ++j) {
      Ints word = shift_left(fit.subs[j], 28);
      for (int e = 0; e < 4; ++e) word = word | shift_left(signs[4 * j + e] & splat_int(127), 7 * e);
      store_bytes(fit.codes[j].entries, 4, out, 2 + 8 * j);
      store32(word, out, 6 + 8 * j);
    }
  }
};
static_assert(sizeof(IQ2_XXS) == 66 && alignof(IQ2_XXS) == 1 && std::is_trivially_copyable_v<IQ2_XXS>);
