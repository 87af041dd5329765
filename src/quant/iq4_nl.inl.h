// 32 weights on the uneven levels of levels.inl.h.

template <>
struct BlockCodec<IQ4_NL> {
  static constexpr int kGroup = 32;
  static constexpr bool kHasOffset = false;

  static void expand(const IQ4_NL& block, Expanded& out) noexcept {
    out.scales[0] = half_of(block.scale);
    store_codes(lookup_levels(Iq4Levels::kCodes, nibble_pair(block.nibbles)), out.codes);
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    const Floats scale = through_half(best_scale<Iq4Levels, kWeighted>(x, w, 32));
    const Floats inverse = reciprocal(scale);
    store16(half_scale(scale), out, 0);
    store_nibbles_16([&](int i) { return Iq4Levels::code(x[i] * inverse); }, out, 2);
  }
};
