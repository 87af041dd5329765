// 256 ternary weights, five to a byte.

/// Digits, most significant first, as the fraction that tq1_0.h describes: ceil(number · 256 / 243). A missing fifth
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

template <>
struct BlockCodec<TQ1_0> {
  static constexpr int kGroup = 256;
  static constexpr bool kHasOffset = false;

  static void expand(const TQ1_0& block, Expanded& out) noexcept {
    out.scales[0] = half_of(block.scale);
    std::uint8_t rest[32] = {};  // bytes 32..47 and the four with four digits
    __builtin_memcpy(rest, block.fives + 32, 16);
    __builtin_memcpy(rest + 16, block.fours, 4);
    Bytes first = load_bytes(block.fives);
    Bytes second = load_bytes(rest);
    for (int n = 0; n < 5; ++n) {
      std::int8_t digits[32];
      store_codes(leading_digit(first), out.codes + 32 * n);
      store_codes(leading_digit(second), digits);
      __builtin_memcpy(out.codes + 160 + 16 * n, digits, 16);
      if (n < 4) __builtin_memcpy(out.codes + 240 + 4 * n, digits + 16, 4);
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
