// q3_k: a super-block of 256 weights in 16 sub-blocks of 16; value = scale · (s - 32) · (q - 4) with q in 0..7 and a
// 6-bit s per sub-block. 3.4375 bits per weight.

struct Q3_K {
  static constexpr BlockFormat kFormat = BlockFormat::q3_k;
  static constexpr int kValues = 256, kGroup = 16, kBits = 3;
  static constexpr ScaleKind kScales = ScaleKind::sub_scales;
  static constexpr int kSubBits = 6;
  static constexpr bool kSignedSubs = true;
  static constexpr bool kHasOffset = false;
  using Levels = IntegerLevels<-4, 3>;

  std::uint8_t high_bits[32];  // byte l, bit k: bit 2 of the weight l + 32k
  std::uint8_t crumbs[64];     // low 2 bits; per 128 weights 32 bytes, weights l, l+32, l+64, l+96 from the low bits up
  std::uint8_t sub_scales[12];  // s of sub-block j: low 4 bits in byte j % 8 (half j / 8), upper 2 in byte 8 + j % 4
  PackedHalf scale;

  BlockScales scales() const noexcept {
    BlockScales s{.scale = code_of(scale)};
    for (int j = 0; j < 16; ++j) {
      const int low = (sub_scales[j % 8] >> (j / 8 * 4)) & 15;
      const int high = (sub_scales[8 + j % 4] >> (j / 4 * 2)) & 3;
      s.subs[j] = static_cast<std::uint8_t>((low | (high << 4)) - 32);
    }
    return s;
  }

  void levels(std::int8_t* out) const noexcept {
    const Bytes high = load_bytes(high_bits);
    for (int k = 0; k < 8; ++k) {
      const Bytes low = crumbs_of(crumbs + k / 4 * 32, k % 4);
      const Bytes third = shift_left(low_bits(shift_right(high, k), 1), 2);
      store_codes(minus(join(low, third), 4), out + 32 * k);
    }
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    const SymmetricSuper<16> s = fit_symmetric_super<Levels, 16, 16, -32, 31, kWeighted>(x, w);
    Ints low[256];
    Ints high[32];
    for (int l = 0; l < 32; ++l) high[l] = splat_int(0);
    for (int j = 0; j < 16; ++j) {
      const Floats inverse = reciprocal(s.scale * s.sub[j]);
      for (int i = 16 * j; i < 16 * j + 16; ++i) {
        const Ints code = Levels::code(x[i] * inverse);
        low[i] = code & splat_int(3);
        high[i % 32] = high[i % 32] | shift_left(shift_right(code, 2), i / 32);
      }
    }
    store_bytes(high, 32, out, 0);
    store_crumbs(low, out, 32);
    store_crumbs(low + 128, out, 64);
    Ints stored[16];
    for (int j = 0; j < 16; ++j) stored[j] = truncate(s.sub[j]) + splat_int(32);
    Ints bytes[12];
    const Ints mask = splat_int(15);
    for (int j = 0; j < 8; ++j) bytes[j] = (stored[j] & mask) | shift_left(stored[j + 8] & mask, 4);
    for (int j = 0; j < 4; ++j) {
      bytes[8 + j] = shift_right(stored[j], 4) | shift_left(shift_right(stored[j + 4], 4), 2) |
                     shift_left(shift_right(stored[j + 8], 4), 4) | shift_left(shift_right(stored[j + 12], 4), 6);
    }
    store_bytes(bytes, 12, out, 96);
    store16(half_scale(s.scale), out, 108);
  }
};
static_assert(sizeof(Q3_K) == 110 && alignof(Q3_K) == 1 && std::is_trivially_copyable_v<Q3_K>);
