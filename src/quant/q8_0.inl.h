// One scale for 32 weights of 8 bits. Without importance as ggml does it, operation by operation.

template <>
struct BlockCodec<Q8_0> {
  static constexpr int kGroup = 32;
  static constexpr bool kHasOffset = false;

  static void expand(const Q8_0& block, Expanded& out) noexcept {
    out.scales[0] = half_of(block.scale);
    for (int i = 0; i < 32; ++i) out.codes[i] = block.q[i];
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    using Levels = IntegerLevels<-127, 127>;
    const Floats plain = abs_of(extremum(x, 32)) / splat(127.0f);
    const Floats scale = choose_half_scale<Levels, kWeighted>(x, w, 32, plain);
    const Floats inverse = reciprocal(kWeighted ? scale : plain);
    store16(half_scale(kWeighted ? scale : plain), out, 0);
    for (int i = 0; i < 32; i += 4) {
      Ints bytes[4];
      for (int k = 0; k < 4; ++k) {
        const Floats t = clamp(x[i + k] * inverse, -127.0f, 127.0f);
        bytes[k] = truncate(round_away(t)) & splat_int(255);
      }
      store_bytes(bytes, 4, out, 2 + i);
    }
  }
};
