// Eight sub-blocks of 32 with 6-bit sub-scales and sub-minima; see super_block.inl.h for the search.

template <>
struct BlockCodec<Q4_K> {
  static constexpr int kGroup = 32;
  static constexpr bool kHasOffset = true;

  static void expand(const Q4_K& block, Expanded& out) noexcept {
    expand_sub_scales(block.scales, half_of(block.scale), half_of(block.min), out);
    for (int j = 0; j < 4; ++j) {
      const Bytes packed = load_bytes(block.nibbles + 32 * j);
      store_codes(low_bits(packed, 15), out.codes + 64 * j);
      store_codes(shift_right(packed, 4), out.codes + 64 * j + 32);
    }
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    const AffineSuper<8> s = fit_affine_super<15, 8, 32, 63, kWeighted>(x, w);
    store16(half_scale(s.scale), out, 0);
    store16(half_scale(s.min), out, 2);
    store_sub_scales(s.sub, s.low, out, 4);
    for (int j = 0; j < 8; j += 2) {
      const Affine first = s.at(j);
      const Affine second = s.at(j + 1);
      const Floats inverse_first = reciprocal(first.scale);
      const Floats inverse_second = reciprocal(second.scale);
      Ints bytes[32];
      for (int l = 0; l < 32; ++l) {
        const Ints low = truncate(affine_code<15>(x[32 * j + l], first.offset, inverse_first));
        const Ints high = truncate(affine_code<15>(x[32 * j + 32 + l], second.offset, inverse_second));
        bytes[l] = low | shift_left(high, 4);
      }
      store_bytes(bytes, 32, out, 16 + 16 * j);
    }
  }
};
