// q5_k: as q4_k with a fifth bit kept apart; value = scale·s·q - min·m with q in 0..31. 5.5 bits per weight.

struct Q5_K {
  static constexpr BlockFormat kFormat = BlockFormat::q5_k;
  static constexpr int kValues = 256, kGroup = 32, kBits = 5;
  static constexpr ScaleKind kScales = ScaleKind::sub_scales;
  static constexpr int kSubBits = 6;
  static constexpr bool kSignedSubs = false;
  static constexpr bool kHasOffset = true;
  using Levels = IntegerLevels<0, 31>;

  PackedHalf scale;
  PackedHalf min;
  std::uint8_t sub_scales[12];  // 8 × 6-bit s and m; see q4_k.inl.h
  std::uint8_t high_bits[32];   // byte l, bit k: bit 4 of the weight l + 32k
  std::uint8_t nibbles[128];    // low 4 bits; per 64 weights 32 bytes as in q4_k

  BlockScales scales() const noexcept { return six_bit_scales(code_of(scale), code_of(min), sub_scales); }

  void levels(std::int8_t* out) const noexcept {
    const Bytes high = load_bytes(high_bits);
    for (int k = 0; k < 8; ++k) {
      const Bytes packed = load_bytes(nibbles + k / 2 * 32);
      const Bytes low = k % 2 == 0 ? low_bits(packed, 15) : shift_right(packed, 4);
      const Bytes fifth = shift_left(low_bits(shift_right(high, k), 1), 4);
      store_codes(join(low, fifth), out + 32 * k);
    }
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    const AffineSuper<8> s = fit_affine_super<31, 8, 32, 63, kWeighted>(x, w);
    store16(half_scale(s.scale), out, 0);
    store16(half_scale(s.min), out, 2);
    store_sub_scales(s.sub, s.low, out, 4);
    Ints codes[256];
    affine_codes<31>(x, s, 32, codes);
    Ints high[32];
    for (int l = 0; l < 32; ++l) {
      high[l] = splat_int(0);
      for (int k = 0; k < 8; ++k) high[l] = high[l] | shift_left(shift_right(codes[l + 32 * k], 4), k);
    }
    store_bytes(high, 32, out, 16);
    const Ints mask = splat_int(15);
    for (int j = 0; j < 4; ++j) store_nibbles<32>([&](int i) { return codes[64 * j + i] & mask; }, out, 48 + 32 * j);
  }
};
static_assert(sizeof(Q5_K) == 176 && alignof(Q5_K) == 1 && std::is_trivially_copyable_v<Q5_K>);
