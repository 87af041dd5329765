// tq2_0: 256 ternary weights share one scale; value = scale · (t - 1), t in 0..2 stored in two bits (3 would read as
// 2). 2.0625 bits per weight, faster to read than tq1_0.

/// Codes 0, 1, 2 for -1, 0, +1; returns the scale as binary16 holds it. The absolute maximum, the plain choice, is
/// among the trials, so the error never exceeds that of plain rounding.
template <bool kWeighted>
inline Floats fit_ternary(const Floats* x, const Floats* w, Ints* codes) noexcept {
  const Floats scale = through_half(abs_of(best_scale<TernaryLevels, kWeighted, 4>(x, w, 256)));
  const Floats inverse = reciprocal(scale);
  for (int i = 0; i < 256; ++i) codes[i] = TernaryLevels::code(x[i] * inverse);
  return scale;
}

struct TQ2_0 {
  static constexpr BlockFormat kFormat = BlockFormat::tq2_0;
  static constexpr int kValues = 256, kGroup = 256, kBits = 2;
  static constexpr ScaleKind kScales = ScaleKind::half;
  static constexpr bool kHasOffset = false;
  using Levels = TernaryLevels;

  std::uint8_t crumbs[64];  // per 128 weights 32 bytes; byte m holds weights m, m+32, m+64, m+96 from the low bits up
  PackedHalf scale;

  BlockScales scales() const noexcept { return {.scale = code_of(scale)}; }

  void levels(std::int8_t* out) const noexcept {
    for (int k = 0; k < 8; ++k) store_codes(minus(crumbs_of(crumbs + k / 4 * 32, k % 4), 1), out + 32 * k);
  }

  /// Not 0 if some field has both bits set: 3 is not a ternary digit.
  unsigned unused_codes() const noexcept {
    std::uint8_t found = 0;
    for (const std::uint8_t byte : crumbs) found |= static_cast<std::uint8_t>(byte & (byte >> 1) & 0x55);
    return found;
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
static_assert(sizeof(TQ2_0) == 66 && alignof(TQ2_0) == 1 && std::is_trivially_copyable_v<TQ2_0>);
