// q5_0: as q4_0 with a fifth bit kept apart; value[i] = scale · (q[i] - 16), q in 0..31. 5.5 bits per weight.

/// Fifth bits as one word, then the nibbles: the tail that q5_0 and q5_1 share.
inline void store_five_bits(const Ints* codes, std::byte* const* out, int offset) noexcept {
  Ints high = splat_int(0);
  for (int i = 0; i < 32; ++i) high = high | shift_left(shift_right(codes[i], 4), i);
  store32(high, out, offset);
  store_nibbles<16>([&](int i) { return codes[i] & splat_int(15); }, out, offset + 4);
}

inline Bytes five_bits(const std::uint8_t* high_bits, const std::uint8_t* nibbles) noexcept {
  return join(nibble_pair(nibbles), bits32(high_bits, 16));
}

struct Q5_0 {
  static constexpr BlockFormat kFormat = BlockFormat::q5_0;
  static constexpr int kValues = 32, kGroup = 32, kBits = 5;
  static constexpr ScaleKind kScales = ScaleKind::half;
  static constexpr bool kHasOffset = false;
  using Levels = IntegerLevels<-16, 15>;

  PackedHalf scale;
  std::uint8_t high_bits[4];  // bit i of these 32, first byte first: bit 4 of q[i]
  std::uint8_t nibbles[16];   // byte j: low 4 bits of q[j] and, in the high half, of q[j + 16]

  BlockScales scales() const noexcept { return {.scale = code_of(scale)}; }

  void levels(std::int8_t* out) const noexcept { store_codes(minus(five_bits(high_bits, nibbles), 16), out); }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
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
static_assert(sizeof(Q5_0) == 22 && alignof(Q5_0) == 1 && std::is_trivially_copyable_v<Q5_0>);
