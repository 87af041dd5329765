// q4_k: a super-block of 256 weights in 8 sub-blocks of 32; value = scale·s·q - min·m with q in 0..15 and, per sub-
// block, 6-bit s and m. 4.5 bits per weight.

// The 12 bytes of q4_k and q5_k that hold eight 6-bit sub-scales s and eight 6-bit sub-minima m:
//   bytes 0..3    s[j] in the low 6 bits, the upper 2 bits of s[j + 4] above them
//   bytes 4..7    m[j] in the low 6 bits, the upper 2 bits of m[j + 4] above them
//   bytes 8..11   the low 4 bits of s[j + 4], then those of m[j + 4]

inline BlockScales six_bit_scales(std::uint16_t scale, std::uint16_t min, const std::uint8_t* bytes) noexcept {
  BlockScales s{.scale = scale, .min = min};
  for (int j = 0; j < 4; ++j) {
    s.subs[j] = bytes[j] & 63;
    s.lows[j] = bytes[j + 4] & 63;
    s.subs[j + 4] = static_cast<std::uint8_t>((bytes[j + 8] & 15) | (bytes[j] >> 6 << 4));
    s.lows[j + 4] = static_cast<std::uint8_t>((bytes[j + 8] >> 4) | (bytes[j + 4] >> 6 << 4));
  }
  return s;
}

inline void store_sub_scales(const Floats* sub, const Floats* low, std::byte* const* out, int offset) noexcept {
  Ints bytes[12];
  for (int j = 0; j < 4; ++j) {
    const Ints s = truncate(sub[j]);
    const Ints m = truncate(low[j]);
    const Ints s_upper = truncate(sub[j + 4]);
    const Ints m_upper = truncate(low[j + 4]);
    const Ints mask = splat_int(15);
    bytes[j] = s | shift_left(shift_right(s_upper, 4), 6);
    bytes[j + 4] = m | shift_left(shift_right(m_upper, 4), 6);
    bytes[j + 8] = (s_upper & mask) | shift_left(m_upper & mask, 4);
  }
  store_bytes(bytes, 12, out, offset);
}

struct Q4_K {
  static constexpr BlockFormat kFormat = BlockFormat::q4_k;
  static constexpr int kValues = 256, kGroup = 32, kBits = 4;
  static constexpr ScaleKind kScales = ScaleKind::sub_scales;
  static constexpr int kSubBits = 6;
  static constexpr bool kSignedSubs = false;
  static constexpr bool kHasOffset = true;
  using Levels = IntegerLevels<0, 15>;

  PackedHalf scale;
  PackedHalf min;
  std::uint8_t sub_scales[12];  // 8 × 6-bit s and m, see above
  std::uint8_t nibbles[128];    // per 64 weights 32 bytes; byte l: weight l in the low half, l + 32 in the high half

  BlockScales scales() const noexcept { return six_bit_scales(code_of(scale), code_of(min), sub_scales); }

  void levels(std::int8_t* out) const noexcept {
    for (int j = 0; j < 4; ++j) {
      const Bytes packed = load_bytes(nibbles + 32 * j);
      store_codes(low_bits(packed, 15), out + 64 * j);
      store_codes(shift_right(packed, 4), out + 64 * j + 32);
    }
  }

  template <bool kWeighted>
  static void encode(const Floats* x, const Floats* w, std::byte* const* out) noexcept {
    const AffineSuper<8> s = fit_affine_super<15, 8, 32, 63, kWeighted>(x, w);
    store16(half_scale(s.scale), out, 0);
    store16(half_scale(s.min), out, 2);
    store_sub_scales(s.sub, s.low, out, 4);
    Ints codes[256];
    affine_codes<15>(x, s, 32, codes);
    for (int j = 0; j < 4; ++j) store_nibbles<32>([&](int i) { return codes[64 * j + i]; }, out, 16 + 32 * j);
  }
};
static_assert(sizeof(Q4_K) == 144 && alignof(Q4_K) == 1 && std::is_trivially_copyable_v<Q4_K>);
