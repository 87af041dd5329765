// q6_k: a super-block of 256 weights in 16 sub-blocks of 16; value = scale · s · (q - 32) with q in 0..63 and an 8-bit
// signed s per sub-block. 6.5625 bits per weight.

struct Q6_K {
  static constexpr BlockFormat kFormat = BlockFormat::q6_k;
  static constexpr int kValues = 256, kGroup = 16, kBits = 6;
  static constexpr ScaleKind kScales = ScaleKind::sub_scales;
  static constexpr int kSubBits = 8;
  static constexpr bool kSignedSubs = true;
  static constexpr bool kHasOffset = false;
  using Levels = IntegerLevels<-32, 31>;

  std::uint8_t nibbles[128];  // low 4 bits; per 128 weights 64 bytes: byte l (0..63) holds weights l and l + 64
  std::uint8_t crumbs[64];  // upper 2 bits; per 128 weights 32 bytes: weights l, l+32, l+64, l+96 from the low bits up
  std::int8_t sub_scales[16];
  PackedHalf scale;

  BlockScales scales() const noexcept {
    BlockScales s{.scale = code_of(scale)};
    for (int j = 0; j < 16; ++j) s.subs[j] = static_cast<std::uint8_t>(sub_scales[j]);
    return s;
  }

  void levels(std::int8_t* out) const noexcept {
    for (int k = 0; k < 8; ++k) {  // 32 weights each; nibbles of k and k + 2 share bytes
      const Bytes packed = load_bytes(nibbles + k / 4 * 64 + k % 2 * 32);
      const Bytes low = k % 4 < 2 ? low_bits(packed, 15) : shift_right(packed, 4);
      const Bytes upper = shift_left(crumbs_of(crumbs + k / 4 * 32, k % 4), 4);
      store_codes(minus(join(low, upper), 32), out + 32 * k);
    }
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    const SymmetricSuper<16> s = fit_symmetric_super<Levels, 16, 16, -128, 127, kWeighted>(x, w);
    Ints codes[256];
    Ints scales[16];
    for (int j = 0; j < 16; ++j) {
      const Floats inverse = reciprocal(s.scale * s.sub[j]);
      for (int i = 16 * j; i < 16 * j + 16; ++i) codes[i] = Levels::code(x[i] * inverse);
      scales[j] = truncate(s.sub[j]) & splat_int(255);
    }
    for (int half = 0; half < 2; ++half) {
      const Ints* part = codes + 128 * half;
      Ints upper[128];
      for (int i = 0; i < 128; ++i) upper[i] = shift_right(part[i], 4);
      store_nibbles<64>([&](int i) { return part[i] & splat_int(15); }, out, 64 * half);
      store_crumbs(upper, out, 128 + 32 * half);
    }
    store_bytes(scales, 16, out, 192);
    store16(half_scale(s.scale), out, 208);
  }
};
static_assert(sizeof(Q6_K) == 210 && alignof(Q6_K) == 1 && std::is_trivially_copyable_v<Q6_K>);
