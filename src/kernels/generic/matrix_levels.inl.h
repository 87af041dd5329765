// Codes as floats, for products with float32 activations.

/// What codes of the lower and of the upper plane stand for. The zero belongs to the upper one where there is one: then
/// a weight of zero is two zeros, and no rounding is left of it.
template <class Format>
struct PlaneLevels {
  using Levels = typename Format::Levels;
  static constexpr int kLow = Format::Codes::kLow;
  static constexpr int kHigh = Format::Codes::kHigh;
  static constexpr float low(int code) noexcept {
    return kHigh == 0 ? Levels::level(code & ((1 << kLow) - 1)) : static_cast<float>(code & ((1 << kLow) - 1));
  }
  static constexpr float high(int code) noexcept { return Levels::level((code & ((1 << kHigh) - 1)) << kLow); }
};

/// 16 levels by the lowest bits of an index; neighbours above them may stay in the index, their entries repeat.
struct LevelTable {
  float of[16];
};
template <class Format>
inline constexpr LevelTable kLowLevels = [] {
  LevelTable t{};
  for (int i = 0; i < 16; ++i) t.of[i] = PlaneLevels<Format>::low(i);
  return t;
}();

/// The levels of codes as floats: a table for single planes of up to 4 bits, where one permutation reads it (it looks
/// at 4 bits of the index only, so the bits of neighbours above the code need no masking: their entries repeat).
template <class Format>
struct FloatLevels {
  static constexpr bool kByTable =
      Format::Codes::kHigh == 0 && Format::kBits <= 4 && (kCheapLookup || Format::Levels::kIsTable);
  /// Codes that fill a byte and are not signed once their zero is subtracted: uint8.
  static constexpr bool kUnsigned = [] {
    if constexpr (Format::Levels::kIsTable) {
      return false;
    } else {
      return Format::kBits == 8 && Format::Levels::zero == 0;
    }
  }();
  /// What a column is in units of. Without a table a code is read at the top of its lane, where its sign is that of the
  /// lane: moving it down again would cost a shift.
  static constexpr float kUnit = kByTable || kUnsigned ? 1.0f : 0x1p-24f;

  /// The four columns of step k, in order.
  static void step(const std::byte* codes, int k, Floats (&columns)[4]) noexcept {
    if constexpr (kByTable) {
      constexpr int kPerByte = 8 / Format::kBits;
      const Ints packed = load_quads_once(codes + k / kPerByte * kVectorBytes);
      for (int j = 0; j < 4; ++j) {
        columns[j] = lookup16(kLowLevels<Format>.of, shift_right(packed, 8 * j + Format::kBits * (k % kPerByte)));
      }
    } else if constexpr (kUnsigned) {
      const Ints quad = Format::Codes::step(codes, k);
      for (int j = 0; j < 4; ++j) columns[j] = to_floats(shift_right(quad, 8 * j) & splat_int(255));
    } else {
      Ints quad = Format::Codes::step(codes, k);
      if constexpr (Format::kBits == 1) quad = quad + quad;  // levels are two apart
      quad = minus_bytes(quad, Format::Levels::zero);        // signed from here on
      for (int j = 0; j < 4; ++j) {
        const Ints topmost = j == 3 ? quad : shift_left(quad, 24 - 8 * j);
        columns[j] = to_floats(j == 0 ? topmost : topmost & splat_int(static_cast<std::int32_t>(0xFF000000u)));
      }
    }
  }
};
