// q2_k: a super-block of 256 weights in 16 sub-blocks of 16; value = scale·s·q - min·m with q in 0..3 and, per sub-
// block, 4-bit s and m. 2.625 bits per weight.

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

struct Q2_K {
  static constexpr BlockFormat kFormat = BlockFormat::q2_k;
  static constexpr int kValues = 256, kGroup = 16, kBits = 2;
  static constexpr ScaleKind kScales = ScaleKind::sub_scales;
  static constexpr int kSubBits = 4;
  static constexpr bool kSignedSubs = false;
  static constexpr bool kHasOffset = true;
  using Levels = IntegerLevels<0, 3>;

  std::uint8_t sub_scales[16];  // per sub-block: s in the low half, m in the high half
  std::uint8_t crumbs[64];  // per 128 weights 32 bytes; byte l holds weights l, l+32, l+64, l+96 from the low bits up
  PackedHalf scale;
  PackedHalf min;

  BlockScales scales() const noexcept {
    BlockScales s{.scale = code_of(scale), .min = code_of(min)};
    for (int j = 0; j < 16; ++j) {
      s.subs[j] = sub_scales[j] & 15;
      s.lows[j] = sub_scales[j] >> 4;
    }
    return s;
  }

  void levels(std::int8_t* out) const noexcept {
    for (int k = 0; k < 8; ++k) store_codes(crumbs_of(crumbs + k / 4 * 32, k % 4), out + 32 * k);
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    const AffineSuper<16> s = fit_affine_super<3, 16, 16, 15, kWeighted>(x, w);
    Ints scales[16];
    Ints codes[256];
    for (int j = 0; j < 16; ++j) scales[j] = truncate(s.sub[j]) | shift_left(truncate(s.low[j]), 4);
    affine_codes<3>(x, s, 16, codes);
    store_bytes(scales, 16, out, 0);
    store_crumbs(codes, out, 16);
    store_crumbs(codes + 128, out, 48);
    store16(half_scale(s.scale), out, 80);
    store16(half_scale(s.min), out, 82);
  }
};
static_assert(sizeof(Q2_K) == 84 && alignof(Q2_K) == 1 && std::is_trivially_copyable_v<Q2_K>);
