// The original engine's Q4_0: float32 scale max|w| / 7, halves away from zero, neighbours in one byte.

template <>
struct BlockCodec<EntityQ4_0> {
  static constexpr int kGroup = 32;
  static constexpr bool kHasOffset = false;

  static void expand(const EntityQ4_0& block, Expanded& out) noexcept {
    __builtin_memcpy(&out.scales[0], block.scale.bytes, 4);
    constexpr std::int8_t kSigned[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
    store_codes(interleave_halves(lookup_levels(kSigned, nibble_pair(block.nibbles))), out.codes);
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    using Levels = IntegerLevels<-8, 7>;
    Floats scale = abs_of(extremum(x, 32)) / splat(7.0f);
    if constexpr (kWeighted) {
      const Floats searched = best_scale<Levels, true>(x, w, 32);
      const Mask better = scale_error<Levels, true>(x, w, 32, searched) < scale_error<Levels, true>(x, w, 32, scale);
      scale = select(better, searched, scale);
    }
    const Floats divisor = select(scale == splat(0.0f), splat(1.0f), scale);
    store32(bits_of(scale), out, 0);
    for (int j = 0; j < 16; ++j) {
      const Ints mask = splat_int(15);
      const Ints low = truncate(round_away(clamp(x[2 * j] / divisor, -8.0f, 7.0f))) & mask;
      const Ints high = truncate(round_away(clamp(x[2 * j + 1] / divisor, -8.0f, 7.0f))) & mask;
      store8(low | shift_left(high, 4), out, 4 + j);
    }
  }
};
