// Sixteen sub-blocks of 16 with 8-bit sub-scales; see super_block.inl.h for the search.

template <>
struct BlockCodec<Q6_K> {
  static constexpr int kGroup = 16;
  static constexpr bool kHasOffset = false;

  static void expand(const Q6_K& block, Expanded& out) noexcept {
    const float scale = half_of(block.scale);
    for (int j = 0; j < 16; ++j) out.scales[j] = scale * static_cast<float>(block.scales[j]);
    for (int k = 0; k < 8; ++k) {  // 32 weights each; nibbles of k and k + 2 share bytes
      const Bytes packed = load_bytes(block.nibbles + k / 4 * 64 + k % 2 * 32);
      const Bytes low = k % 4 < 2 ? low_bits(packed, 15) : shift_right(packed, 4);
      const Bytes upper = shift_left(crumbs_of(block.crumbs + k / 4 * 32, k % 4), 4);
      store_codes(minus(join(low, upper), 32), out.codes + 32 * k);
    }
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    using Levels = IntegerLevels<-32, 31>;
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
      Ints nibbles[64];
      Ints upper[128];
      const Ints mask = splat_int(15);
      for (int l = 0; l < 64; ++l) nibbles[l] = (part[l] & mask) | shift_left(part[l + 64] & mask, 4);
      for (int i = 0; i < 128; ++i) upper[i] = shift_right(part[i], 4);
      store_bytes(nibbles, 64, out, 64 * half);
      store_crumbs(upper, out, 128 + 32 * half);
    }
    store_bytes(scales, 16, out, 192);
    store16(half_scale(s.scale), out, 208);
  }
};
