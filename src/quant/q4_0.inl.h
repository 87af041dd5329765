// One scale for 32 weights, codes around zero: q4_0 and, with a fifth bit, q5_0. Without importance the arithmetic is
// ggml's, operation by operation, so that the bytes are equal; with it, the scale of least weighted error is searched.

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

template <>
struct BlockCodec<Q4_0> {
  static constexpr int kGroup = 32;
  static constexpr bool kHasOffset = false;

  static void expand(const Q4_0& block, Expanded& out) noexcept {
    out.scales[0] = half_of(block.scale);
    store_codes(minus(nibble_pair(block.nibbles), 8), out.codes);
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    using Levels = IntegerLevels<-8, 7>;
    const Floats plain = extremum(x, 32) / splat(-8.0f);
    const Floats scale = choose_half_scale<Levels, kWeighted>(x, w, 32, plain);
    const Floats inverse = reciprocal(kWeighted ? scale : plain);
    store16(half_scale(kWeighted ? scale : plain), out, 0);
    store_nibbles_16(
        [&](int i) { return kWeighted ? Levels::code(x[i] * inverse) : plain_centred_code<8>(x[i], inverse); }, out, 2);
  }
};
