// q2_0: 64 weights share one scale; value[i] = scale · (q[i] - 1), q in 0..3. 2.25 bits per weight.

struct Q2_0 {
  static constexpr BlockFormat kFormat = BlockFormat::q2_0;
  static constexpr int kValues = 64, kGroup = 64, kBits = 2;
  static constexpr ScaleKind kScales = ScaleKind::half;
  static constexpr bool kHasOffset = false;
  using Levels = IntegerLevels<-1, 2>;

  PackedHalf scale;
  std::uint8_t crumbs[16];  // byte j: weights 4j … 4j + 3 from the low bits up

  BlockScales scales() const noexcept { return {.scale = code_of(scale)}; }

  void levels(std::int8_t* out) const noexcept {
    for (int i = 0; i < 64; ++i) out[i] = static_cast<std::int8_t>((crumbs[i / 4] >> 2 * (i % 4) & 3) - 1);
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    const Floats scale = through_half(best_scale<Levels, kWeighted>(x, w, 64));
    const Floats inverse = reciprocal(scale);
    Ints bytes[16];
    for (int j = 0; j < 16; ++j) {
      bytes[j] = splat_int(0);
      for (int i = 0; i < 4; ++i) bytes[j] = bytes[j] | shift_left(Levels::code(x[4 * j + i] * inverse), 2 * i);
    }
    store16(half_scale(scale), out, 0);
    store_bytes(bytes, 16, out, 2);
  }
};
static_assert(sizeof(Q2_0) == 18 && alignof(Q2_0) == 1 && std::is_trivially_copyable_v<Q2_0>);
