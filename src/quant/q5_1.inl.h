// See q4_1.inl.h for the search and q5_0.inl.h for the fifth bits.

template <>
struct BlockCodec<Q5_1> {
  static constexpr int kGroup = 32;
  static constexpr bool kHasOffset = true;

  static void expand(const Q5_1& block, Expanded& out) noexcept {
    out.scales[0] = half_of(block.scale);
    out.offsets[0] = -half_of(block.min);
    store_codes(five_bits(block.high_bits, block.nibbles), out.codes);
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    const MinScale<31> fit = fit_min_scale<31, kWeighted>(x, w);
    store16(half_scale(fit.scale), out, 0);
    store16(half_scale(fit.min), out, 2);
    store_five_bits(fit.codes, out, 4);
  }
};
