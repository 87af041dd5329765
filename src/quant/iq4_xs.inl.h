// iq4_xs: a super-block of 256 weights in 8 sub-blocks of 32; value = scale · (s - 32) · level[q] with the levels of
// iq4_nl and a 6-bit s per sub-block. 4.25 bits per weight.

struct IQ4_XS {
  static constexpr BlockFormat kFormat = BlockFormat::iq4_xs;
  static constexpr int kValues = 256, kGroup = 32, kBits = 4;
  static constexpr ScaleKind kScales = ScaleKind::sub_scales;
  static constexpr int kSubBits = 6;
  static constexpr bool kSignedSubs = true;
  static constexpr bool kHasOffset = false;
  using Levels = Iq4Levels;

  PackedHalf scale;
  std::uint8_t scales_high[2];  // little-endian, bits 2j, 2j+1: upper 2 bits of s[j]
  std::uint8_t scales_low[4];   // byte j/2, low half first: low 4 bits of s[j]
  std::uint8_t nibbles[128];    // per 32 weights 16 bytes; byte j: weight j in the low half, j + 16 in the high half

  BlockScales scales() const noexcept {
    BlockScales s{.scale = code_of(scale)};
    for (int j = 0; j < 8; ++j) {
      const int low = (scales_low[j / 2] >> (j % 2 * 4)) & 15;
      const int high = (scales_high[j / 4] >> (2 * (j % 4))) & 3;
      s.subs[j] = static_cast<std::uint8_t>((low | (high << 4)) - 32);
    }
    return s;
  }

  void levels(std::int8_t* out) const noexcept {
    for (int j = 0; j < 8; ++j) store_codes(lookup_levels(Levels::kTable, nibble_pair(nibbles + 16 * j)), out + 32 * j);
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    const SymmetricSuper<8> s = fit_symmetric_super<Iq4Levels, 8, 32, -32, 31, kWeighted>(x, w);
    Ints low[4];
    Ints high = splat_int(0);
    for (int j = 0; j < 8; ++j) {
      const Ints stored = truncate(s.sub[j]) + splat_int(32);
      const Ints nibble = stored & splat_int(15);
      low[j / 2] = j % 2 == 0 ? nibble : low[j / 2] | shift_left(nibble, 4);
      high = high | shift_left(shift_right(stored, 4), 2 * j);
      const Floats inverse = reciprocal(s.scale * s.sub[j]);
      store_nibbles<16>([&](int i) { return Iq4Levels::code(x[32 * j + i] * inverse); }, out, 8 + 16 * j);
    }
    store16(half_scale(s.scale), out, 0);
    store16(high, out, 2);
    store_bytes(low, 4, out, 4);
  }
};
static_assert(sizeof(IQ4_XS) == 136 && alignof(IQ4_XS) == 1 && std::is_trivially_copyable_v<IQ4_XS>);
