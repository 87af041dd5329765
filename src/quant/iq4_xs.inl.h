// Eight sub-blocks of 32 on the levels of iq4_nl, with 6-bit sub-scales; see super_block.inl.h for the search.

template <>
struct BlockCodec<IQ4_XS> {
  static constexpr int kGroup = 32;
  static constexpr bool kHasOffset = false;

  static void expand(const IQ4_XS& block, Expanded& out) noexcept {
    const float scale = half_of(block.scale);
    for (int j = 0; j < 8; ++j) {
      const int low = (block.scales_low[j / 2] >> (j % 2 * 4)) & 15;
      const int high = (block.scales_high[j / 4] >> (2 * (j % 4))) & 3;
      out.scales[j] = scale * static_cast<float>((low | (high << 4)) - 32);
      store_codes(lookup_levels(Iq4Levels::kCodes, nibble_pair(block.nibbles + 16 * j)), out.codes + 32 * j);
    }
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
      store_nibbles_16([&](int i) { return Iq4Levels::code(x[32 * j + i] * inverse); }, out, 8 + 16 * j);
    }
    store16(half_scale(s.scale), out, 0);
    store16(high, out, 2);
    store_bytes(low, 4, out, 4);
  }
};
