// q4_1: 32 weights with a scale and a lowest value; value[i] = scale · q[i] + min, q in 0..15. Suits weights that are
// not centred on zero. 5 bits per weight.
//
// Without importance the arithmetic is ggml's, operation by operation; with it, scale and minimum are searched.

/// Codes 0..kTop of one block per lane, and the scale and minimum that go with them.
template <int kTop>
struct MinScale {
  Floats scale, min;
  Ints codes[32];
};

template <int kTop, bool kWeighted>
inline MinScale<kTop> fit_min_scale(const Floats* x, const Floats* w) noexcept {
  Floats low = x[0];
  Floats high = x[0];
  for (int i = 1; i < 32; ++i) {
    low = min_of(x[i], low);
    high = max_of(x[i], high);
  }
  const Floats plain = (high - low) / splat(static_cast<float>(kTop));
  MinScale<kTop> fit;
  if constexpr (!kWeighted) {
    fit.scale = plain;
    fit.min = low;
    const Floats inverse = reciprocal(plain);
    for (int i = 0; i < 32; ++i) {
      const Floats t = (x[i] - low) * inverse + splat(0.5f);
      fit.codes[i] = truncate(clamp(t, 0.0f, static_cast<float>(kTop)));
    }
  } else {
    const Affine ends{through_half(plain), splat(0.0f) - through_half(low)};
    const Affine free = best_affine<kTop, false, true>(x, w, 32);
    const Affine searched{through_half(free.scale), through_half(free.offset)};
    const Mask better = affine_error<kTop, true>(x, w, 32, searched) < affine_error<kTop, true>(x, w, 32, ends);
    fit.scale = select(better, searched.scale, ends.scale);
    const Floats offset = select(better, searched.offset, ends.offset);
    fit.min = splat(0.0f) - offset;
    const Floats inverse = reciprocal(fit.scale);
    for (int i = 0; i < 32; ++i) fit.codes[i] = truncate(affine_code<kTop>(x[i], offset, inverse));
  }
  return fit;
}

struct Q4_1 {
  static constexpr BlockFormat kFormat = BlockFormat::q4_1;
  static constexpr int kValues = 32, kGroup = 32, kBits = 4;
  static constexpr ScaleKind kScales = ScaleKind::half;
  static constexpr bool kHasOffset = true;
  using Levels = IntegerLevels<0, 15>;

  PackedHalf scale;
  PackedHalf min;
  std::uint8_t nibbles[16];  // byte j: q[j] in the low half, q[j + 16] in the high half

  BlockScales scales() const noexcept { return {.scale = code_of(scale), .min = code_of(min)}; }

  void levels(std::int8_t* out) const noexcept { store_codes(nibble_pair(nibbles), out); }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    const MinScale<15> fit = fit_min_scale<15, kWeighted>(x, w);
    store16(half_scale(fit.scale), out, 0);
    store16(half_scale(fit.min), out, 2);
    store_nibbles<16>([&](int i) { return fit.codes[i]; }, out, 4);
  }
};
static_assert(sizeof(Q4_1) == 20 && alignof(Q4_1) == 1 && std::is_trivially_copyable_v<Q4_1>);
