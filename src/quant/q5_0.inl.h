// See q4_0.inl.h; the fifth bits of all 32 codes are one 32-bit word.

/// Fifth bits as one word, then the nibbles: the tail that q5_0 and q5_1 share.
inline void store_five_bits(const Ints* codes, std::byte* const* out, int offset) noexcept {
  Ints high = splat_int(0);
  for (int i = 0; i < 32; ++i) high = high | shift_left(shift_right(codes[i], 4), i);
  store32(high, out, offset);
  store_nibbles_16([&](int i) { return codes[i] & splat_int(15); }, out, offset + 4);
}

inline Bytes five_bits(const std::uint8_t* high_bits, const std::uint8_t* nibbles) noexcept {
  return join(nibble_pair(nibbles), bits32(high_bits, 16));
}

template <>
struct BlockCodec<Q5_0> {
  static constexpr int kGroup = 32;
  static constexpr bool kHasOffset = false;

  static void expand(const Q5_0& block, Expanded& out) noexcept {
    out.scales[0] = half_of(block.scale);
    store_codes(minus(five_bits(block.high_bits, block.nibbles), 16), out.codes);
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    using Levels = IntegerLevels<-16, 15>;
    const Floats plain = extremum(x, 32) / splat(-16.0f);
    const Floats scale = choose_half_scale<Levels, kWeighted>(x, w, 32, plain);
    const Floats inverse = reciprocal(kWeighted ? scale : plain);
    store16(half_scale(kWeighted ? scale : plain), out, 0);
    Ints codes[32];
    for (int i = 0; i < 32; ++i) {
      codes[i] = kWeighted ? Levels::code(x[i] * inverse) : plain_centred_code<16>(x[i], inverse);
    }
    store_five_bits(codes, out, 2);
  }
};
