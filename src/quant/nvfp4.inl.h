// nvfp4: 64 weights in E2M1, each 16 of them with a scale in unsigned E4M3; value = e4m3(scale) · e2m1(code). The
// scales have no room for a tensor's overall magnitude, which producers keep beside the tensor. 4.5 bits per weight.

struct NVFP4 {
  static constexpr BlockFormat kFormat = BlockFormat::nvfp4;
  static constexpr int kValues = 64, kGroup = 16, kBits = 4;
  static constexpr ScaleKind kScales = ScaleKind::small_float;
  static constexpr bool kHasOffset = false;
  using Levels = E2M1Levels;

  std::uint8_t sub_scales[4];  // E4M3 without sign; 0x7F (NaN) reads as 0
  std::uint8_t nibbles[32];    // per 16 weights 8 bytes; byte j: code j in the low half, code j + 8 in the high half

  BlockScales scales() const noexcept {
    BlockScales s;
    for (int j = 0; j < 4; ++j) s.subs[j] = sub_scales[j] == 0x7F ? 0 : sub_scales[j] & 0x7F;
    return s;
  }

  void levels(std::int8_t* out) const noexcept {
    for (int pair = 0; pair < 2; ++pair) {  // 16 bytes are two sub-blocks, each with its low halves first
      const Bytes codes = lookup_levels(Levels::kTable, nibble_pair(nibbles + 16 * pair));
      store_codes(swap_middle_quarters(codes), out + 32 * pair);
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
      store_nibbles<8>([&](int i) { return E2M1Levels::code(part[i] * inverse); }, out, 4 + 8 * j);
    }
  }
};
static_assert(sizeof(NVFP4) == 36 && alignof(NVFP4) == 1 && std::is_trivially_copyable_v<NVFP4>);
