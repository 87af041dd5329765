// q1_0: 128 weights share one scale; value[i] = scale where bit i is set, -scale elsewhere. 1.125 bits per weight.
//
// The scale of least error is the mean magnitude. Without importance the arithmetic is ggml's, operation by operation,
// so that the bytes are equal.

struct Q1_0 {
  static constexpr BlockFormat kFormat = BlockFormat::q1_0;
  static constexpr int kValues = 128, kGroup = 128, kBits = 1;
  static constexpr ScaleKind kScales = ScaleKind::half;
  static constexpr bool kHasOffset = false;
  using Levels = BinaryLevels;

  PackedHalf scale;
  std::uint8_t bits[16];  // bit i of byte j: weight 8j + i

  BlockScales scales() const noexcept { return {.scale = code_of(scale)}; }

  void levels(std::int8_t* out) const noexcept {
    for (int k = 0; k < 4; ++k) store_codes(minus(bits32(bits + 4 * k, 2), 1), out + 32 * k);
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    Floats sum = splat(0.0f);
    Floats weight = kWeighted ? splat(0.0f) : splat(128.0f);
    for (int i = 0; i < 128; ++i) {
      sum = sum + (kWeighted ? w[i] * abs_of(x[i]) : abs_of(x[i]));
      if (kWeighted) weight = weight + w[i];
    }
    store16(half_scale(ratio(sum, weight)), out, 0);
    for (int k = 0; k < 4; ++k) {
      Ints word = splat_int(0);
      for (int i = 0; i < 32; ++i) {
        word = word | shift_left(select(x[32 * k + i] >= splat(0.0f), splat_int(1), splat_int(0)), i);
      }
      store32(word, out, 2 + 4 * k);
    }
  }
};
static_assert(sizeof(Q1_0) == 18 && alignof(Q1_0) == 1 && std::is_trivially_copyable_v<Q1_0>);
