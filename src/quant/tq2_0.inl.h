// 256 ternary weights, two bits each, and the search of the scale that tq1_0 shares.

/// Codes 0, 1, 2 for -1, 0, +1; returns the scale as binary16 holds it. The absolute maximum, the plain choice, is
/// among the trials, so the error never exceeds that of plain rounding.
template <bool kWeighted>
inline Floats fit_ternary(const Floats* x, const Floats* w, Ints* codes) noexcept {
  const Floats scale = through_half(abs_of(best_scale<TernaryLevels, kWeighted, 4>(x, w, 256)));
  const Floats inverse = reciprocal(scale);
  for (int i = 0; i < 256; ++i) codes[i] = TernaryLevels::code(x[i] * inverse);
  return scale;
}

template <>
struct BlockCodec<TQ2_0> {
  static constexpr int kGroup = 256;
  static constexpr bool kHasOffset = false;

  static void expand(const TQ2_0& block, Expanded& out) noexcept {
    out.scales[0] = half_of(block.scale);
    for (int k = 0; k < 8; ++k) {
      store_codes(minus(crumbs_of(block.crumbs + k / 4 * 32, k % 4), 1), out.codes + 32 * k);
    }
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    Ints codes[256];
    const Floats scale = fit_ternary<kWeighted>(x, w, codes);
    store_crumbs(codes, out, 0);
    store_crumbs(codes + 128, out, 32);
    store16(half_scale(scale), out, 64);
  }
};
