// q4_0: 32 weights share one scale; value[i] = scale · (q[i] - 8), q in 0..15. The scale is negative when the weight
// of largest magnitude is positive, so that this weight always lands on q = 0 and uses the full range. 4.5 bits per
// weight.
//
// Without importance the arithmetic is ggml's, operation by operation, so that the bytes are equal; with it, the scale
// of least weighted error is searched.

/// The scale that puts the weight of largest magnitude on the end of the range, then the searched one if it is better.
template <class Levels, bool kWeighted>
inline Floats choose_half_scale(const Floats* x, const Floats* w, int count, Floats plain) noexcept {
  const Floats rounded = through_half(plain);
  if (!kWeighted) return rounded;
  const Floats searched = through_half(best_scale<Levels, kWeighted>(x, w, count));
  const Mask better =
      scale_error<Levels, kWeighted>(x, w, count, searched) < scale_error<Levels, kWeighted>(x, w, count, rounded);
  return select(better, searched, rounded);
}

/// Codes as ggml rounds them: truncation of x / scale + middle + 0.5, with the scale before its rounding to binary16.
template <int kMiddle>
inline Ints plain_centred_code(Floats x, Floats inverse) noexcept {
  const Floats t = x * inverse + splat(static_cast<float>(kMiddle) + 0.5f);
  return truncate(clamp(t, 0.0f, static_cast<float>(2 * kMiddle - 1)));
}

struct Q4_0 {
  static constexpr BlockFormat kFormat = BlockFormat::q4_0;
  static constexpr int kValues = 32, kGroup = 32, kBits = 4;
  static constexpr ScaleKind kScales = ScaleKind::half;
  static constexpr bool kHasOffset = false;
  using Levels = IntegerLevels<-8, 7>;

  PackedHalf scale;
  std::uint8_t nibbles[16];  // byte j: q[j] in the low half, q[j + 16] in the high half

  BlockScales scales() const noexcept { return {.scale = code_of(scale)}; }

  void levels(std::int8_t* out) const noexcept { store_codes(minus(nibble_pair(nibbles), 8), out); }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    const Floats plain = extremum(x, 32) / splat(-8.0f);
    const Floats scale = choose_half_scale<Levels, kWeighted>(x, w, 32, plain);
    const Floats inverse = reciprocal(kWeighted ? scale : plain);
    store16(half_scale(kWeighted ? scale : plain), out, 0);
    store_nibbles<16>(
        [&](int i) { return kWeighted ? Levels::code(x[i] * inverse) : plain_centred_code<8>(x[i], inverse); }, out, 2);
  }
};
static_assert(sizeof(Q4_0) == 18 && alignof(Q4_0) == 1 && std::is_trivially_copyable_v<Q4_0>);
