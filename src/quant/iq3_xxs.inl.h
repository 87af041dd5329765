// iq3_xxs: a super-block of 256 weights in 8 sub-blocks of 32; value = scale · (2s + 1) / 4 · ±level with a 4-bit s per
// sub-block. Four magnitudes, each one of eight from 4 to 62, are one of 256 entries of a codebook; seven bits are the
// signs of eight weights, of which an even number is negative. 3.0625 bits per weight.

struct IQ3_XXS {
  static constexpr BlockFormat kFormat = BlockFormat::iq3_xxs;
  static constexpr int kValues = 256, kGroup = 32, kBits = 4;
  static constexpr ScaleKind kScales = ScaleKind::sub_scales;
  static constexpr int kSubBits = 6, kUnitExponent = -2;
  static constexpr bool kSignedSubs = true;
  static constexpr bool kHasOffset = false;
  using Levels = Iq3XxsLevels;
  using Use = CodebookUse<kIq3XxsBook, 32, 31>;

  PackedHalf scale;
  std::uint8_t entries[64];
  std::uint8_t words[32];  // per 32 weights a word: seven signs for every eight of them, and s on top

  BlockScales scales() const noexcept {
    BlockScales s{.scale = code_of(scale)};
    for (int j = 0; j < 8; ++j) s.subs[j] = static_cast<std::uint8_t>(2 * (load_word(words + 4 * j) >> 28) + 1);
    return s;
  }

  void levels(std::int8_t* out) const noexcept {
    for (int i = 0; i < 32; ++i) {
      const std::uint64_t low = kIq3XxsBook.levels[entries[2 * i]], high = kIq3XxsBook.levels[entries[2 * i + 1]];
      const unsigned seven = load_word(words + i / 4 * 4) >> 7 * (i % 4) & 127;
      store_signed(low | high << 32, even_signs(seven), out + 8 * i);
    }
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    CodebookFit<Use> fit;
    Ints signs[32];
    fit_signed_codebook<Use, Iq3XxsDigits, kUnitExponent, true, kWeighted>(x, w, fit, signs);
    store16(half_scale(fit.scale), out, 0);
    for (int j = 0; j < 8; ++j) {
      Ints word = shift_left(fit.subs[j], 28);
      for (int e = 0; e < 4; ++e) word = word | shift_left(signs[4 * j + e] & splat_int(127), 7 * e);
      store_bytes(fit.codes[j].entries, 8, out, 2 + 8 * j);
      store32(word, out, 66 + 4 * j);
    }
  }
};
static_assert(sizeof(IQ3_XXS) == 98 && alignof(IQ3_XXS) == 1 && std::is_trivially_copyable_v<IQ3_XXS>);
