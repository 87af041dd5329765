// A scale and a lowest value for 32 weights: q4_1 and, with a fifth bit, q5_1. Without importance the arithmetic is
// ggml's, operation by operation; with it, both numbers are searched.

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

template <>
struct BlockCodec<Q4_1> {
  static constexpr int kGroup = 32;
  static constexpr bool kHasOffset = true;

  static void expand(const Q4_1& block, Expanded& out) noexcept {
    out.scales[0] = half_of(block.scale);
    out.offsets[0] = -half_of(block.min);
    store_codes(nibble_pair(block.nibbles), out.codes);
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    const MinScale<15> fit = fit_min_scale<15, kWeighted>(x, w);
    store16(half_scale(fit.scale), out, 0);
    store16(half_scale(fit.min), out, 2);
    store_nibbles_16([&](int i) { return fit.codes[i]; }, out, 4);
  }
};
