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
    Ints high[32];
    for (int l = 0; l < 32; ++l) high[l] = splat_int(0);
    for (int j = 0; j < 8; j += 2) {
      const Affine first = s.at(j);
      const Affine second = s.at(j + 1);
      const Floats inverse_first = reciprocal(first.scale);
      const Floats inverse_second = reciprocal(second.scale);
      Ints bytes[32];
      for (int l = 0; l < 32; ++l) {
        const Ints a = truncate(affine_code<31>(x[32 * j + l], first.offset, inverse_first));
        const Ints b = truncate(affine_code<31>(x[32 * j + 32 + l], second.offset, inverse_second));
        const Ints mask = splat_int(15);
        bytes[l] = (a & mask) | shift_left(b & mask, 4);
        high[l] = high[l] | shift_left(shift_right(a, 4), j) | shift_left(shift_right(b, 4), j + 1);
      }
      store_bytes(bytes, 32, out, 48 + 16 * j);
    }
    store_bytes(high, 32, out, 16);
  }
};
static_assert(sizeof(Q5_K) == 176 && alignof(Q5_K) == 1 && std::is_trivially_copyable_v<Q5_K>);
