// Sixteen sub-blocks of 16 with 6-bit sub-scales; see super_block.inl.h for the search.

template <>
struct BlockCodec<Q3_K> {
  static constexpr int kGroup = 16;
  static constexpr bool kHasOffset = false;

  static void expand(const Q3_K& block, Expanded& out) noexcept {
    const float scale = half_of(block.scale);
    for (int j = 0; j < 16; ++j) {
      const int low = (block.scales[j % 8] >> (j / 8 * 4)) & 15;
      const int high = (block.scales[8 + j % 4] >> (j / 4 * 2)) & 3;
      out.scales[j] = scale * static_cast<float>((low | (high << 4)) - 32);
    }
    const Bytes high = load_bytes(block.high_bits);
    for (int k = 0; k < 8; ++k) {
      const Bytes low = crumbs_of(block.crumbs + k / 4 * 32, k % 4);
      const Bytes third = shift_left(low_bits(shift_right(high, k), 1), 2);
      store_codes(minus(join(low, third), 4), out.codes + 32 * k);
    }
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    using Levels = IntegerLevels<-4, 3>;
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
