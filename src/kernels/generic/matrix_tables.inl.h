// Planes of one and two bits with float32 activations and a single token.
//
// Four bits of a row are four columns of a 1-bit plane or two of a 2-bit plane. What they can add up to are 16 numbers,
// which are made once for the token and looked up: three operations for four or two columns instead of three for each.
// It serves formats of 1 and 2 bits, and the upper planes of those of 3, 5 and 6. Worth it where the look-up is one
// instruction. Two panels share each table, which comes from the second-level cache.

template <class Format>
inline constexpr bool kUsesTables = kCheapLookup&& Format::kBits != 4 && Format::kBits != 8;

/// Tables of a plane and 32 columns. Table 8v + 4h + j belongs to bits 8j + 4h … 8j + 4h + 3 of vector v of the plane;
/// its columns are steps (8v + 4h) / kPlaneBits and the following, byte j of each.
template <int kPlaneBits>
inline constexpr int kPlaneTables = 8 * kPlaneBits;

template <class Format, bool kUpper, int kPlaneBits>
struct PlaneTables {
  static constexpr int kFields = 4 / kPlaneBits;
  /// The level of field i of an index, for all 16 indices: what the activation of that column is multiplied with.
  struct Factors {
    float of[kFields][16];
  };
  static constexpr Factors kFactors = [] {
    Factors f{};
    for (int i = 0; i < kFields; ++i) {
      for (int m = 0; m < 16; ++m) {
        const int code = m >> (kPlaneBits * i);
        f.of[i][m] = kUpper ? PlaneLevels<Format>::high(code) : PlaneLevels<Format>::low(code);
      }
    }
    return f;
  }();

  /// Tables of one block of 32 columns.
  static void make(const float* x, float* out) noexcept {
    for (int table = 0; table < kPlaneTables<kPlaneBits>; ++table, out += 16) {
      const float* columns = x + table / 4 * (4 / kPlaneBits) * 4 + table % 4;
      for (int part = 0; part < 16; part += kLanes) {
        Floats sum = load_floats(kFactors.of[0] + part) * splat(columns[0]);
        for (int i = 1; i < kFields; ++i) sum = fma(load_floats(kFactors.of[i] + part), splat(columns[4 * i]), sum);
        store_floats(sum, out + part);
      }
    }
  }

  /// sums[p] += what group g of kGroups of the block adds up to, for all panels. (A template in g, so that each copy is
  /// called once and its sums stay in registers.)
  template <int kGroups, int g, int kPanels>
  static void add(const std::byte* const (&planes)[kPanels], const float* tables, Floats (&sums)[kPanels][2]) noexcept {
    constexpr int kCount = kPlaneTables<kPlaneBits> / kGroups;
    Ints packed[kPanels];
    unrolled<kCount>([&](auto i) {
      constexpr int table = g * kCount + i;
      unrolled<kPanels>([&](auto p) {
        if constexpr (i == 0 || table % 8 == 0) packed[p] = load_quads_once(planes[p] + table / 8 * kVectorBytes);
        const Ints index = shift_right(packed[p], 8 * (table % 4) + table % 8 / 4 * 4);
        sums[p][i % 2] = sums[p][i % 2] + lookup16(tables + static_cast<std::size_t>(table) * 16, index);
      });
    });
  }
};

/// The tables of a format: those of its lower plane where that has up to 2 bits, then those of its upper plane.
template <class Format>
struct FormatTables {
  static constexpr int kLow = Format::Codes::kLow;
  static constexpr int kHigh = Format::Codes::kHigh;
  static constexpr bool kHasLow = kLow <= 2;
  static constexpr bool kHasHigh = kHigh != 0;
  using Low = PlaneTables<Format, false, kHasLow ? kLow : 1>;
  using High = PlaneTables<Format, true, kHasHigh ? kHigh : 1>;
  static constexpr std::size_t kLowFloats = kHasLow ? kPlaneTables<kLow> * 16 : 0;
  static constexpr std::size_t kFloats = kLowFloats + (kHasHigh ? kPlaneTables<kHigh> * 16 : 0);

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
      high[p] = low[p] + kPlaneBytes<Tables::kLow>;
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
              parts[p][j % 2] = fma(lookup16(kLowLevels<Format>.of, index), x, parts[p][j % 2]);
            });
          });
        });
      }
      unrolled<kPanels>([&](auto p) {
        const GroupScale group = scales.read(super + p * bytes, block + p * bytes, of_super, g);
        sums[p] = fma(group.scale, parts[p][0] + parts[p][1], sums[p]);
        if constexpr (Format::Scales::kHasOffset)
          sums[p] = fma(group.offset, group_sum<kGroups>(a, b * 32, g), sums[p]);
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
