// entity_q4_0: the original engine's own Q4_0, found in `.entity` files; not ggml's. 32 weights share a float32 scale;
// value = scale · q with q in -8..7 (two's complement). 5 bits per weight.
// The scale is max|w| / 7, halves are rounded away from zero.

struct EntityQ4_0 {
  static constexpr BlockFormat kFormat = BlockFormat::entity_q4_0;
  static constexpr int kValues = 32, kGroup = 32, kBits = 4;
  static constexpr ScaleKind kScales = ScaleKind::single;
  static constexpr bool kHasOffset = false;
  using Levels = IntegerLevels<-8, 7>;

  PackedFloat scale;
  std::uint8_t nibbles[16];  // byte j: q[2j] in the low half, q[2j + 1] in the high half

  BlockScales scales() const noexcept {
    BlockScales s;
    __builtin_memcpy(&s.scale, scale.bytes, 4);
    return s;
  }

  void levels(std::int8_t* out) const noexcept {
    constexpr std::int8_t kSigned[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
    store_codes(interleave_halves(lookup_levels(kSigned, nibble_pair(nibbles))), out);
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    Floats scale = abs_of(extremum(x, 32)) / splat(7.0f);
    if constexpr (kWeighted) {
      const Floats searched = best_scale<Levels, true>(x, w, 32);
      const Mask better = scale_error<Levels, true>(x, w, 32, searched) < scale_error<Levels, true>(x, w, 32, scale);
      scale = select(better, searched, scale);
    }
    const Floats divisor = select(scale == splat(0.0f), splat(1.0f), scale);
    store32(bits_of(scale), out, 0);
    const auto code = [&](int i) { return truncate(round_away(clamp(x[i] / divisor, -8.0f, 7.0f))) & splat_int(15); };
    store_nibbles<16>([&](int i) { return code(2 * (i % 16) + i / 16); }, out, 4);
  }
};
static_assert(sizeof(EntityQ4_0) == 20 && alignof(EntityQ4_0) == 1 && std::is_trivially_copyable_v<EntityQ4_0>);
