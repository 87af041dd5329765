// iq4_nl: 32 weights share one scale; value[i] = scale · level[q[i]] with 16 fixed, unevenly spaced levels from -127
// to 113 (Iq4Levels), closer together near zero where most weights are. 4.5 bits per weight.

struct IQ4_NL {
  static constexpr BlockFormat kFormat = BlockFormat::iq4_nl;
  static constexpr int kValues = 32, kGroup = 32, kBits = 4;
  static constexpr ScaleKind kScales = ScaleKind::half;
  static constexpr bool kHasOffset = false;
  using Levels = Iq4Levels;

  PackedHalf scale;
  std::uint8_t nibbles[16];  // byte j: q[j] in the low half, q[j + 16] in the high half

  BlockScales scales() const noexcept { return {.scale = code_of(scale)}; }

  void levels(std::int8_t* out) const noexcept {
    store_codes(lookup_levels(Levels::kTable, nibble_pair(nibbles)), out);
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    const Floats scale = through_half(best_scale<Iq4Levels, kWeighted>(x, w, 32));
    const Floats inverse = reciprocal(scale);
    store16(half_scale(scale), out, 0);
    store_nibbles<16>([&](int i) { return Iq4Levels::code(x[i] * inverse); }, out, 2);
  }
};
static_assert(sizeof(IQ4_NL) == 18 && alignof(IQ4_NL) == 1 && std::is_trivially_copyable_v<IQ4_NL>);
