// Planes of one bit with float32 activations and a single token.
//
// Such a plane says which activations to add up. Four bits of a row select one of 16 sums of four activations, so those
// sums are made once for the token and looked up: three operations for four columns instead of three for each. It
// serves binary, and the upper bit of the formats of 3 and 5 bits. Worth it where the look-up is one instruction.

template <class Format>
inline constexpr bool kUsesBitSums = kCheapLookup && (Format::kBits == 1 || Format::Codes::kHigh == 1);

/// The sums of one block of 32 columns: eight tables of 16. Table 4h + j belongs to bits 4h … 4h+3 of byte j, which are
/// the columns 4(4h + i) + j.
inline constexpr std::size_t kBitTables = 8;
inline constexpr std::size_t kBitSumFloats = kBitTables * 16;

inline void make_bit_sums(const float* x, std::size_t blocks, float* out) noexcept {
  for (std::size_t b = 0; b < blocks; ++b) {
    for (std::size_t table = 0; table < kBitTables; ++table, out += 16) {
      const std::size_t first = b * 32 + table / 4 * 16 + table % 4;
      out[0] = 0.0f;
      for (std::size_t i = 0; i < 4; ++i) {
        const float value = x[first + 4 * i];
        for (std::size_t m = 0; m < (std::size_t{1} << i); ++m) out[(std::size_t{1} << i) + m] = out[m] + value;
      }
    }
  }
}

/// Levels of the plane below the bit, for the look-up of matrix_product.inl.h.
template <class Format>
struct LowLevels {
  static constexpr int kLowBits = Format::Codes::kLow;
  struct Table {
    float levels[16];
  };
  static constexpr Table make_table() noexcept {
    Table t{};
    for (int i = 0; i < 16; ++i) t.levels[i] = static_cast<float>((i & ((1 << kLowBits) - 1)) - Format::Levels::zero);
    return t;
  }
  static constexpr Table kTable = make_table();
};

template <class Format>
inline void bit_sums_tile(const ProductArgs& a, const std::byte* panel, std::size_t first_row,
                          const float* tables) noexcept {
  constexpr int kGroups = 32 / Format::Scales::kGroup;
  constexpr int kGroupSteps = kSteps / kGroups;
  constexpr bool kIsBinary = Format::kBits == 1;
  const typename Format::Scales scales(a.scale_group);
  Floats sum = splat(0.0f);
  PanelWalk<Format> walk(panel + kHeaderBytes<Format>, scales);
  walk.each_block((a.cols + 31) / 32, [&](std::size_t b, const std::byte* super, const std::byte* block,
                                          const std::byte* codes, int of_super) {
    const Ints bits = load_quads(kIsBinary ? codes : codes + kPlaneBytes<Format::Codes::kLow>);
    const float* x = a.in.x + b * 32;
    unrolled<kGroups>([&](auto g) {
      Floats upper[2] = {splat(0.0f), splat(0.0f)};
      unrolled<static_cast<int>(kBitTables) / kGroups>([&](auto i) {
        const int table = g * (static_cast<int>(kBitTables) / kGroups) + i;
        const Ints index = shift_right(bits, 8 * (table % 4) + 4 * (table / 4));
        const float* entries = tables + b * kBitSumFloats + static_cast<std::size_t>(table) * 16;
        upper[i % 2] = upper[i % 2] + lookup16(entries, index);
      });
      const Floats selected = upper[0] + upper[1];
      Floats part = selected;
      if constexpr (kIsBinary) {
        part = (selected + selected) + group_sum<kGroups>(a, b * 32, g);  // +1 where the bit is set, -1 elsewhere
      } else {
        Floats lower[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
        constexpr int kLow = Format::Codes::kLow;
        constexpr int kPerByte = 8 / kLow;
        unrolled<kGroupSteps>([&](auto step) {
          const int k = g * kGroupSteps + step;
          const Ints packed = load_quads(codes + k / kPerByte * kVectorBytes);
          unrolled<4>([&](auto j) {
            const Ints index = shift_right(packed, 8 * j + kLow * (k % kPerByte));
            lower[j] = fma(lookup16(LowLevels<Format>::kTable.levels, index), splat(x[4 * k + j]), lower[j]);
          });
        });
        const Floats low = (lower[0] + lower[1]) + (lower[2] + lower[3]);
        part = fma(selected, splat(static_cast<float>(1 << kLow)), low);
      }
      const GroupScale group = scales.read(super, block, of_super, g);
      sum = fma(group.scale, part, sum);
      if constexpr (Format::Scales::kHasOffset) sum = fma(group.offset, group_sum<kGroups>(a, b * 32, g), sum);
    });
  });
  store_tile<Format, 1>({sum}, panel, a, first_row, 0);
}

inline std::size_t bit_sums_bytes(std::size_t cols) noexcept {
  return (cols + 31) / 32 * kBitSumFloats * sizeof(float);
}
