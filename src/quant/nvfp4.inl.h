// Four sub-blocks of 16 weights in E2M1, each with an E4M3 scale. The levels are doubled to integers, so the factor
// here is half the scale.

/// Half of the unsigned E4M3 value: exponent and mantissa moved into place in a float, the bias corrected by a power of
/// two, which also makes subnormals come out right. 0x7F reads as 0.
inline float half_of_e4m3(std::uint8_t code) noexcept {
  const std::uint32_t bits = code == 0x7F ? 0u : static_cast<std::uint32_t>(code & 0x7F) << 20;
  return __builtin_bit_cast(float, bits) * 0x1p119f;
}

template <>
struct BlockCodec<NVFP4> {
  static constexpr int kGroup = 16;
  static constexpr bool kHasOffset = false;

  static void expand(const NVFP4& block, Expanded& out) noexcept {
    for (int j = 0; j < 4; ++j) out.scales[j] = half_of_e4m3(block.scales[j]);
    for (int pair = 0; pair < 2; ++pair) {  // 16 bytes are two sub-blocks, each with its low halves first
      const Bytes codes = lookup_levels(E2M1Levels::kCodes, nibble_pair(block.nibbles + 16 * pair));
      store_codes(swap_middle_quarters(codes), out.codes + 32 * pair);
    }
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    for (int j = 0; j < 4; ++j) {
      const Floats* part = x + 16 * j;
      // The code that puts the largest weight on the largest level, and its neighbours: from clipping it by a third to
      // leaving a quarter of the range unused.
      const Floats top = min_of(abs_of(extremum(part, 16)) / splat(6.0f), splat(448.0f));
      const Ints standard = shift_right(bits_of(top * splat(0x1p-120f)) + splat_int(0x80000), 20);
      Floats least = splat(3e38f);
      Ints chosen = splat_int(0);
      Floats scale = splat(0.0f);
      constexpr int kSteps[] = {0, -1, -2, -3, -4, 1, 2};  // the standard one first: it stays when all errors overflow
      for (const int step : kSteps) {
        const Ints code = min_of(max_of(standard + splat_int(step), splat_int(0)), splat_int(0x7E));
        const Floats half = from_bits(shift_left(code, 20)) * splat(0x1p119f);
        const Floats error = min_of(scale_error<E2M1Levels, kWeighted>(part, w + 16 * j, 16, half), splat(2.9e38f));
        const Mask better = error < least;
        least = select(better, error, least);
        chosen = select(better, code, chosen);
        scale = select(better, half, scale);
      }
      store8(chosen, out, j);
      const Floats inverse = reciprocal(scale);
      for (int i = 0; i < 8; ++i) {
        const Ints low = E2M1Levels::code(part[i] * inverse);
        const Ints high = E2M1Levels::code(part[i + 8] * inverse);
        store8(low | shift_left(high, 4), out, 4 + 8 * j + i);
      }
    }
  }
};
