// tq1_0: 256 ternary weights share one scale; value = scale · (t - 1), t in 0..2. Five ternary digits fill a byte as
// the fraction ceil(number · 256 / 243): multiplying the byte by 3 moves the next digit into the carry, so no division
// is needed to read it. 1.6875 bits per weight.

/// Digits, most significant first, as the fraction ceil(number · 256 / 243). A missing fifth
/// digit counts as 0.
inline Ints ternary_fraction(const Ints* codes, int digits, int stride) noexcept {
  Ints number = splat_int(0);
  for (int n = 0; n < 5; ++n) {
    number = number * splat_int(3);
    if (n < digits) number = number + codes[n * stride];
  }
  // A float quotient truncates right: it is exact where 243 divides, and elsewhere 1/243 or more from the next integer.
  const Ints numerator = shift_left(number, 8) + splat_int(242);
  return truncate(to_floats(numerator) / splat(243.0f));
}

/// The leading digit, less 1: floor(3b / 256) is 1 from 86 on and 2 from 171 on.
inline Bytes leading_digit(Bytes b) noexcept { return minus(plus(at_least(b, 86), at_least(b, 171)), 1); }

/// Drops the leading digit: the fraction of 3b.
inline Bytes next_digits(Bytes b) noexcept { return plus(plus(b, b), b); }

struct TQ1_0 {
  static constexpr BlockFormat kFormat = BlockFormat::tq1_0;
  static constexpr int kValues = 256, kGroup = 256, kBits = 2;
  static constexpr ScaleKind kScales = ScaleKind::half;
  static constexpr bool kHasOffset = false;
  using Levels = TernaryLevels;

  std::uint8_t fives[48];  // bytes 0..31: digit n of byte m is weight m + 32n; bytes 32..47: weight 160 + m + 16n
  std::uint8_t fours[4];   // digit n of byte m is weight 240 + m + 4n
  PackedHalf scale;

  BlockScales scales() const noexcept { return {.scale = code_of(scale)}; }

  void levels(std::int8_t* out) const noexcept {
    std::uint8_t rest[32] = {};  // bytes 32..47 and the four with four digits
    __builtin_memcpy(rest, fives + 32, 16);
    __builtin_memcpy(rest + 16, fours, 4);
    Bytes first = load_bytes(fives);
    Bytes second = load_bytes(rest);
    for (int n = 0; n < 5; ++n) {
      std::int8_t digits[32];
      store_codes(leading_digit(first), out + 32 * n);
      store_codes(leading_digit(second), digits);
      __builtin_memcpy(out + 160 + 16 * n, digits, 16);
      if (n < 4) __builtin_memcpy(out + 240 + 4 * n, digits + 16, 4);
      first = next_digits(first);
      second = next_digits(second);
    }
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    Ints codes[256];
    const Floats scale = fit_ternary<kWeighted>(x, w, codes);
    Ints bytes[52];
    for (int m = 0; m < 32; ++m) bytes[m] = ternary_fraction(codes + m, 5, 32);
    for (int m = 0; m < 16; ++m) bytes[32 + m] = ternary_fraction(codes + 160 + m, 5, 16);
    for (int m = 0; m < 4; ++m) bytes[48 + m] = ternary_fraction(codes + 240 + m, 4, 4);
    store_bytes(bytes, 52, out, 0);
    store16(half_scale(scale), out, 52);
  }
};
static_assert(sizeof(TQ1_0) == 54 && alignof(TQ1_0) == 1 && std::is_trivially_copyable_v<TQ1_0>);
