// Codes as floats, for products with float32 activations.

/// What codes of the lower and of the upper band stand for. The zero belongs to the upper one where there is one: then
/// a weight of zero is two zeros, and no rounding is left of it.
template <class Format>
struct BandLevels {
  using Levels = typename Format::Levels;
  static constexpr int kLow = Format::Codes::kLow;
  static constexpr int kHigh = Format::Codes::kHigh;
  static constexpr float low(int code) noexcept {
    if (Levels::kIsTable) return Levels::level(code & ((1 << (kLow + kHigh)) - 1));  // of the whole code
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
  for (int i = 0; i < 16; ++i) t.of[i] = BandLevels<Format>::low(i);
  return t;
}();

/// The levels of codes as floats: a table for single bands of up to 4 bits, where one permutation reads it (it looks
/// at 4 bits of the index only, so the bits of neighbours above the code need no masking: their entries repeat), and
/// wherever levels come from one.
template <class Format>
struct FloatLevels {
  static constexpr bool kByTable =
      Format::Levels::kIsTable || (Format::Codes::kHigh == 0 && Format::kBits <= 4 && kCheapLookup);
  /// What a column is in units of. Without a table a code is read at the top of its lane, where its sign is that of the
  /// lane: moving it down again would cost a shift.
  static constexpr float kUnit = kByTable ? 1.0f : 0x1p-24f;

  /// The four columns of step k, in order.
  static void step(const std::byte* codes, int k, Floats (&columns)[4]) noexcept {
    if constexpr (Format::Codes::kHigh != 0 && kByTable) {
      const Ints quad = Format::Codes::step(codes, k);
      for (int j = 0; j < 4; ++j) columns[j] = lookup16(kLowLevels<Format>.of, shift_right(quad, 8 * j));
    } else if constexpr (kByTable) {
      constexpr int kPerByte = 8 / Format::kBits;
      const Ints packed = load_quads_once(codes + k / kPerByte * kVectorBytes);
      for (int j = 0; j < 4; ++j) {
        columns[j] = lookup16(kLowLevels<Format>.of, shift_right(packed, 8 * j + Format::kBits * (k % kPerByte)));
      }
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

// ---- bands of one and two bits with float32 activations and a single token.
//
// Four bits of a row are four columns of a 1-bit band or two of a 2-bit band. What they can add up to are 16 numbers,
// which are made once for the token and looked up: three operations for four or two columns instead of three for each.
// It serves formats of 1 and 2 bits, and the upper bands of those of 3, 5 and 6. Worth it where the look-up is one
// instruction. Two panels share each table, which comes from the second-level cache.

template <class Format>
inline constexpr bool kUsesTables =
    kCheapLookup && !Format::Levels::kIsTable && Format::kBits != 4 && Format::kBits != 8;

/// Tables of a band and 32 columns. Table 8v + 4h + j belongs to bits 8j + 4h … 8j + 4h + 3 of vector v of the band;
/// its columns are steps (8v + 4h) / kBandBits and the following, byte j of each.
template <int kBandBits>
inline constexpr int kBandTables = 8 * kBandBits;

template <class Format, bool kUpper, int kBandBits>
struct BandTables {
  static constexpr int kFields = 4 / kBandBits;
  /// The level of field i of an index, for all 16 indices: what the activation of that column is multiplied with.
  struct Factors {
    float of[kFields][16];
  };
  static constexpr Factors kFactors = [] {
    Factors f{};
    for (int i = 0; i < kFields; ++i) {
      for (int m = 0; m < 16; ++m) {
        const int code = m >> (kBandBits * i);
        f.of[i][m] = kUpper ? BandLevels<Format>::high(code) : BandLevels<Format>::low(code);
      }
    }
    return f;
  }();

  /// Tables of one block of 32 columns.
  static void make(const float* x, float* out) noexcept {
    for (int table = 0; table < kBandTables<kBandBits>; ++table, out += 16) {
      const float* columns = x + table / 4 * (4 / kBandBits) * 4 + table % 4;
      for (int part = 0; part < 16; part += kLanes) {
        Floats sum = load_floats(kFactors.of[0] + part) * splat(columns[0]);
        for (int i = 1; i < kFields; ++i) sum = fused(load_floats(kFactors.of[i] + part), splat(columns[4 * i]), sum);
        store_floats(sum, out + part);
      }
    }
  }

  /// sums[p] += what group g of kGroups of the block adds up to, for all panels. (A template in g, so that each copy is
  /// called once and its sums stay in registers.)
  template <int kGroups, int g, int kPanels>
  static void add(const std::byte* const (&bands)[kPanels], const float* tables, Floats (&sums)[kPanels][2]) noexcept {
    constexpr int kCount = kBandTables<kBandBits> / kGroups;
    Ints packed[kPanels];
    unrolled<kCount>([&](auto i) {
      constexpr int table = g * kCount + i;
      unrolled<kPanels>([&](auto p) {
        if constexpr (i == 0 || table % 8 == 0) packed[p] = load_quads_once(bands[p] + table / 8 * kVectorBytes);
        const Ints index = shift_right(packed[p], 8 * (table % 4) + table % 8 / 4 * 4);
        sums[p][i % 2] = sums[p][i % 2] + lookup16(tables + static_cast<std::size_t>(table) * 16, index);
      });
    });
  }
};

/// The tables of a format: those of its lower band where that has up to 2 bits, then those of its upper band.
template <class Format>
struct FormatTables {
  static constexpr int kLow = Format::Codes::kLow;
  static constexpr int kHigh = Format::Codes::kHigh;
  static constexpr bool kHasLow = kLow <= 2;
  static constexpr bool kHasHigh = kHigh != 0;
  using Low = BandTables<Format, false, kHasLow ? kLow : 1>;
  using High = BandTables<Format, true, kHasHigh ? kHigh : 1>;
  static constexpr std::size_t kLowFloats = kHasLow ? kBandTables<kLow> * 16 : 0;
  static constexpr std::size_t kFloats = kLowFloats + (kHasHigh ? kBandTables<kHigh> * 16 : 0);

  static void make(const float* x, std::size_t blocks, float* out) noexcept {
    for (std::size_t b = 0; b < blocks; ++b, out += kFloats) {
      if constexpr (kHasLow) Low::make(x + b * 32, out);
      if constexpr (kHasHigh) High::make(x + b * 32, out + kLowFloats);
    }
  }
};

/// kPanels panels, one after the other in memory from `panel` on.
template <class Format, int kPanels>
inline void tables_tile(const ProductArgs& a, const std::byte* panel, std::size_t bytes, std::size_t first_row,
                        const float* tables) noexcept {
  using Tables = FormatTables<Format>;
  constexpr int kGroups = 32 / Format::Scales::kGroup;
  constexpr int kGroupSteps = kSteps / kGroups;
  const typename Format::Scales scales(a.scale_group);
  Floats sums[kPanels];
  for (int p = 0; p < kPanels; ++p) sums[p] = splat(0.0f);
  PanelWalk<Format> walk(panel + kHeaderBytes<Format>, scales, Ahead::of_heavy(a));
  walk.each_block((a.cols + 31) / 32, [&](std::size_t b, const std::byte* super, const std::byte* block,
                                          const std::byte* codes, int of_super) {
    for (std::size_t p = 1; p < kPanels; ++p) walk.ahead.ask_for(block + p * bytes, PanelWalk<Format>::kBlockBytes);
    const std::byte* low[kPanels];
    const std::byte* high[kPanels];
    for (std::size_t p = 0; p < kPanels; ++p) {
      low[p] = codes + p * bytes;
      high[p] = low[p] + kBandBytes<Tables::kLow>;
    }
    const float* of_block = tables + b * Tables::kFloats;
    unrolled<kGroups>([&](auto g) {
      Floats parts[kPanels][2];
      for (int p = 0; p < kPanels; ++p) parts[p][0] = parts[p][1] = splat(0.0f);
      if constexpr (Tables::kHasHigh)
        Tables::High::template add<kGroups, g>(high, of_block + Tables::kLowFloats, parts);
      if constexpr (Tables::kHasLow) {
        Tables::Low::template add<kGroups, g>(low, of_block, parts);
      } else {
        constexpr int kPerByte = 8 / Tables::kLow;
        Ints packed[kPanels];
        unrolled<kGroupSteps>([&](auto step) {
          constexpr int k = g * kGroupSteps + step;
          unrolled<4>([&](auto j) {
            const Floats x = splat(a.in.x[b * 32 + static_cast<std::size_t>(4 * k + j)]);
            unrolled<kPanels>([&](auto p) {
              if constexpr (j == 0 && k % kPerByte == 0) {
                packed[p] = load_quads_once(low[p] + k / kPerByte * kVectorBytes);
              }
              const Ints index = shift_right(packed[p], 8 * j + Tables::kLow * (k % kPerByte));
              parts[p][j % 2] = fused(lookup16(kLowLevels<Format>.of, index), x, parts[p][j % 2]);
            });
          });
        });
      }
      unrolled<kPanels>([&](auto p) {
        const GroupScale group = scales.read(super + p * bytes, block + p * bytes, of_super, g);
        sums[p] = fused(group.scale, parts[p][0] + parts[p][1], sums[p]);
        if constexpr (Format::Scales::kHasOffset)
          sums[p] = fused(group.offset, group_sum<kGroups>(a, b * 32, g), sums[p]);
      });
    });
  });
  for (std::size_t p = 0; p < kPanels; ++p) {
    store_tile<1>({sums[p]}, row_scales<Format>(panel + p * bytes), a, first_row + p * kLanes, 0);
  }
}

template <class Format>
inline std::size_t tables_bytes(std::size_t cols) noexcept {
  return (cols + 31) / 32 * FormatTables<Format>::kFloats * sizeof(float);
}

template <class Format>
inline void tables_matvec(const ProductArgs& a) noexcept {
  const std::size_t bytes = panel_bytes<Format>(a.cols, a.scale_group);
  float* tables = reinterpret_cast<float*>(a.scratch);
  FormatTables<Format>::make(a.in.x, (a.cols + 31) / 32, tables);
  std::size_t p = a.first_panel;
  for (; p + 2 <= a.last_panel; p += 2) tables_tile<Format, 2>(a, a.run + p * bytes, bytes, p * kLanes, tables);
  if (p < a.last_panel) tables_tile<Format, 1>(a, a.run + p * bytes, bytes, p * kLanes, tables);
}
