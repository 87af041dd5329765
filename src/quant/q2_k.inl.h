// Sixteen sub-blocks of 16 with 4-bit sub-scales and sub-minima; see super_block.inl.h for the search.

/// Four 2-bit codes per byte, 32 weights apart, 32 bytes for 128 weights: the layout of q2_k, q3_k, q6_k and tq2_0.
/// Gives the codes of weights 32k … 32k + 31.
inline Bytes crumbs_of(const std::uint8_t* crumbs, int k) noexcept {
  return low_bits(shift_right(load_bytes(crumbs), 2 * k), 3);
}

/// The reverse. `codes` has 128 lanes of codes 0..3.
inline void store_crumbs(const Ints* codes, std::byte* const* out, int offset) noexcept {
  Ints bytes[32];
  for (int l = 0; l < 32; ++l) {
    bytes[l] = codes[l] | shift_left(codes[l + 32], 2) | shift_left(codes[l + 64], 4) | shift_left(codes[l + 96], 6);
  }
  store_bytes(bytes, 32, out, offset);
}

template <>
struct BlockCodec<Q2_K> {
  static constexpr int kGroup = 16;
  static constexpr bool kHasOffset = true;

  static void expand(const Q2_K& block, Expanded& out) noexcept {
    const float scale = half_of(block.scale);
    const float min = half_of(block.min);
    for (int j = 0; j < 16; ++j) {
      out.scales[j] = scale * static_cast<float>(block.scales[j] & 15);
      out.offsets[j] = min * static_cast<float>(block.scales[j] >> 4);
    }
    for (int k = 0; k < 8; ++k) store_codes(crumbs_of(block.crumbs + k / 4 * 32, k % 4), out.codes + 32 * k);
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    const AffineSuper<16> s = fit_affine_super<3, 16, 16, 15, kWeighted>(x, w);
    Ints scales[16];
    Ints codes[256];
    for (int j = 0; j < 16; ++j) {
      scales[j] = truncate(s.sub[j]) | shift_left(truncate(s.low[j]), 4);
      const Affine at = s.at(j);
      const Floats inverse = reciprocal(at.scale);
      for (int i = 16 * j; i < 16 * j + 16; ++i) codes[i] = truncate(affine_code<3>(x[i], at.offset, inverse));
    }
    store_bytes(scales, 16, out, 0);
    store_crumbs(codes, out, 16);
    store_crumbs(codes + 128, out, 48);
    store16(half_scale(s.scale), out, 80);
    store16(half_scale(s.min), out, 82);
  }
};
