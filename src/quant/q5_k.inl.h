// As q4_k with a fifth bit: byte l of the high bits has bit k for weight l + 32k.

template <>
struct BlockCodec<Q5_K> {
  static constexpr int kGroup = 32;
  static constexpr bool kHasOffset = true;

  static void expand(const Q5_K& block, Expanded& out) noexcept {
    expand_sub_scales(block.scales, half_of(block.scale), half_of(block.min), out);
    const Bytes high = load_bytes(block.high_bits);
    for (int k = 0; k < 8; ++k) {
      const Bytes packed = load_bytes(block.nibbles + k / 2 * 32);
      const Bytes low = k % 2 == 0 ? low_bits(packed, 15) : shift_right(packed, 4);
      const Bytes fifth = shift_left(low_bits(shift_right(high, k), 1), 4);
      store_codes(join(low, fifth), out.codes + 32 * k);
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
