// q8_0: 32 weights share one scale; value[i] = scale · q[i], the encoder uses q in -127..127. 8.5 bits per weight.
// Without importance the arithmetic is ggml's, operation by operation.

struct Q8_0 {
  static constexpr BlockFormat kFormat = BlockFormat::q8_0;
  static constexpr int kValues = 32, kGroup = 32, kBits = 8;
  static constexpr ScaleKind kScales = ScaleKind::half;
  static constexpr bool kHasOffset = false;
  using Levels = IntegerLevels<-128, 127>;

  PackedHalf scale;
  std::int8_t q[kValues];

  BlockScales scales() const noexcept { return {.scale = code_of(scale)}; }

  void levels(std::int8_t* out) const noexcept {
    for (int i = 0; i < kValues; ++i) out[i] = q[i];
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    using Used = IntegerLevels<-127, 127>;
    const Floats plain = abs_of(extremum(x, 32)) / splat(127.0f);
    const Floats scale = choose_half_scale<Used, kWeighted>(x, w, 32, plain);
    const Floats inverse = reciprocal(kWeighted ? scale : plain);
    store16(half_scale(kWeighted ? scale : plain), out, 0);
    for (int i = 0; i < 32; i += 4) {
      Ints bytes[4];
      for (int k = 0; k < 4; ++k) {
        const Floats t = clamp(x[i + k] * inverse, -127.0f, 127.0f);
        bytes[k] = truncate(round_away(t)) & splat_int(255);
      }
      store_bytes(bytes, 4, out, 2 + i);
    }
  }
};
static_assert(sizeof(Q8_0) == 34 && alignof(Q8_0) == 1 && std::is_trivially_copyable_v<Q8_0>);
