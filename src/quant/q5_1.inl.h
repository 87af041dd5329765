// q5_1: as q4_1 with a fifth bit kept apart; value[i] = scale · q[i] + min, q in 0..31. 6 bits per weight.

struct Q5_1 {
  static constexpr BlockFormat kFormat = BlockFormat::q5_1;
  static constexpr int kValues = 32, kGroup = 32, kBits = 5;
  static constexpr ScaleKind kScales = ScaleKind::half;
  static constexpr bool kHasOffset = true;
  using Levels = IntegerLevels<0, 31>;

  PackedHalf scale;
  PackedHalf min;
  std::uint8_t high_bits[4];  // bit i of these 32, first byte first: bit 4 of q[i]
  std::uint8_t nibbles[16];   // byte j: low 4 bits of q[j] and, in the high half, of q[j + 16]

  BlockScales scales() const noexcept { return {.scale = code_of(scale), .min = code_of(min)}; }

  void levels(std::int8_t* out) const noexcept { store_codes(five_bits(high_bits, nibbles), out); }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    const MinScale<31> fit = fit_min_scale<31, kWeighted>(x, w);
    store16(half_scale(fit.scale), out, 0);
    store16(half_scale(fit.min), out, 2);
    store_five_bits(fit.codes, out, 4);
  }
};
static_assert(sizeof(Q5_1) == 24 && alignof(Q5_1) == 1 && std::is_trivially_copyable_v<Q5_1>);
