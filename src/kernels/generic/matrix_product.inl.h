// Products of a run form with one or several tokens.
//
// A tile is one panel (kLanes rows) times kTokens tokens, with all sums in registers: every vector of codes is decoded
// once and used for all tokens of the tile. No sum ever crosses lanes.

/// Walks a panel: the places of the scales and codes of each block of 32 columns, in order.
template <class Format>
struct PanelWalk {
  using Scales = typename Format::Scales;
  static constexpr std::size_t kBlockBytes = Scales::kBlockBytes + Format::Codes::kBytes;

  PanelWalk(const std::byte* panel, const Scales& layout) noexcept : at(panel), scales(layout) {}

  /// Calls body(block number, super place, block place, code place, block of super).
  template <class Body>
  void each_block(std::size_t blocks, Body body) noexcept {
    const std::byte* super = at;
    for (std::size_t b = 0; b < blocks; ++b) {
      const int of_super = static_cast<int>(b % 8);
      if (of_super == 0) {
        super = at;
        at += scales.super_bytes();
      }
      body(b, super, at, at + Scales::kBlockBytes, of_super);
      at += kBlockBytes;
    }
  }

  const std::byte* at;
  const Scales& scales;
};

template <class Format>
inline constexpr bool kHasRowScales = std::is_same_v<typename Format::Scales, FloatScales>;

/// Bytes in front of the blocks: one float32 scale per row, for scalar types.
template <class Format>
inline constexpr std::size_t kHeaderBytes = kHasRowScales<Format> ? 4 * kLanes : 0;

template <class Format>
std::size_t panel_bytes(std::size_t cols, std::size_t scale_group) noexcept {
  const std::size_t blocks = (cols + 31) / 32;
  const typename Format::Scales scales(scale_group);
  return kHeaderBytes<Format> + (blocks + 7) / 8 * scales.super_bytes() + blocks * PanelWalk<Format>::kBlockBytes;
}

/// Adds the bias and stores the rows that exist.
inline void store_rows(Floats sum, const ProductArgs& a, std::size_t first_row, std::size_t token) noexcept {
  const std::size_t left = a.rows - first_row;
  const int count = left < kLanes ? static_cast<int>(left) : kLanes;
  if (a.bias != nullptr) {
    float bias[kLanes] = {};
    __builtin_memcpy(bias, a.bias + first_row, static_cast<std::size_t>(count) * sizeof(float));
    sum = sum + load_floats(bias);
  }
  store_some(sum, a.y + token * a.y_stride + first_row, count);
}

/// The sums of a tile, with the scales of the rows where the format has them.
template <class Format, int kTokens>
inline void store_tile(const Floats (&sums)[kTokens], const std::byte* panel, const ProductArgs& a,
                       std::size_t first_row, std::size_t token) noexcept {
  for (int t = 0; t < kTokens; ++t) {
    Floats sum = sums[t];
    if constexpr (kHasRowScales<Format>) sum = sum * from_bits(load_32(panel));
    store_rows(sum, a, first_row, token + static_cast<std::size_t>(t));
  }
}

/// Minus the sum of a token's activations over group g of the block that begins at column `at`: what an offset
/// multiplies.
template <int kGroups>
inline Floats group_sum(const ProductArgs& a, std::size_t at, int g) noexcept {
  const float* sums = a.in.sums + at / 16;
  return splat(kGroups == 2 ? -sums[g] : -(sums[0] + sums[1]));
}

// ---- int8 activations

/// How the codes of a format enter an integer product, and what a zero weight is there.
template <class Format>
struct DotCodes {
  using Levels = typename Format::Levels;
  static constexpr bool kWide = [] {
    if constexpr (Levels::kIsTable) {
      return Levels::largest > 63;
    } else {
      return Format::kBits == 8;
    }
  }();
  /// Codes of 8 bits do not fit the unsigned product of processors without VNNI.
  static constexpr bool kSigned = kWide && !kWholeBytes;

  struct Table {
    std::int8_t bytes[16];
  };
  static constexpr int kBias = kSigned ? 0 : kWide ? 128 : 12;
  static constexpr Table make_table() noexcept {
    Table t{};
    if constexpr (Levels::kIsTable) {
      for (int i = 0; i < 16; ++i) {
        t.bytes[i] = static_cast<std::int8_t>(static_cast<std::uint8_t>(static_cast<int>(Levels::level(i)) + kBias));
      }
    }
    return t;
  }
  static constexpr Table kTable = make_table();

  static constexpr std::int32_t zero() noexcept {
    if constexpr (Levels::kIsTable) {
      return kBias;
    } else {
      return Levels::zero - (kSigned ? 128 : 0);
    }
  }

  static Ints quad(const std::byte* codes, int k) noexcept {
    const Ints raw = Format::Codes::step(codes, k);
    if constexpr (Levels::kIsTable) return lookup_bytes(kTable.bytes, raw);
    if constexpr (Format::kBits == 1) return raw + raw;  // levels are two apart
    if constexpr (kSigned) return flip_bits(raw, static_cast<std::int32_t>(0x80808080u));
    return raw;
  }
  static Ints dot(Ints sum, Ints codes, Ints x) noexcept {
    if constexpr (kSigned) return dot_signed(sum, codes, x);
    return dot_unsigned(sum, codes, x);
  }
};

/// sums[t] += the products of one block of 32 columns; quad(k) gives the codes of step k.
template <class Format, class Quad, int kTokens>
inline void fast_block(Quad quad, const GroupScale* groups, const ProductArgs& a, std::size_t token, std::size_t b,
                       Floats (&sums)[kTokens]) noexcept {
  using Dot = DotCodes<Format>;
  constexpr int kGroups = 32 / Format::Scales::kGroup;
  constexpr int kGroupSteps = kSteps / kGroups;
  const auto of_token = [&](std::size_t t) { return (token + t) * a.in.stride + b * 32; };  // where its columns begin
  Floats products[kTokens];
  unrolled<kGroups>([&](auto g) {
    // What a weight of zero contributes is taken off in integers, where it cancels exactly.
    Ints dots[kTokens];
    unrolled<kTokens>([&](auto t) {
      const std::int32_t* codes = a.in.code_sums + of_token(t) / 16;
      dots[t] = splat_int(Dot::zero() == 0 ? 0 : -Dot::zero() * (kGroups == 2 ? codes[g] : codes[0] + codes[1]));
    });
    unrolled<kGroupSteps>([&](auto step) {
      constexpr int k = g * kGroupSteps + step;
      const Ints codes = quad(k);
      unrolled<kTokens>([&](auto t) { dots[t] = Dot::dot(dots[t], codes, splat_quad(a.in.q + of_token(t) + 4 * k)); });
    });
    unrolled<kTokens>([&](auto t) {
      const Floats dot = to_floats(dots[t]);
      if constexpr (g == 0) {
        products[t] = groups[g].scale * dot;
      } else {
        products[t] = fma(groups[g].scale, dot, products[t]);
      }
      if constexpr (Format::Scales::kHasOffset)
        sums[t] = fma(groups[g].offset, group_sum<kGroups>(a, of_token(t), g), sums[t]);
    });
  });
  unrolled<kTokens>([&](auto t) { sums[t] = fma(products[t], splat(a.in.scales[of_token(t) / 32]), sums[t]); });
}

template <class Format, int kTokens>
inline void fast_tile(const ProductArgs& a, const std::byte* panel, std::size_t first_row, std::size_t token) noexcept {
  constexpr int kGroups = 32 / Format::Scales::kGroup;
  const typename Format::Scales scales(a.scale_group);
  Floats sums[kTokens];
  for (int t = 0; t < kTokens; ++t) sums[t] = splat(0.0f);
  PanelWalk<Format> walk(panel + kHeaderBytes<Format>, scales);
  walk.each_block((a.cols + 31) / 32, [&](std::size_t b, const std::byte* super, const std::byte* block,
                                          const std::byte* codes, int of_super) {
    GroupScale groups[kGroups];
    for (int g = 0; g < kGroups; ++g) groups[g] = scales.read(super, block, of_super, g);
    fast_block<Format>([&](int k) { return DotCodes<Format>::quad(codes, k); }, groups, a, token, b, sums);
  });
  store_tile<Format>(sums, panel, a, first_row, token);
}

// ---- float32 activations

/// The levels of codes as floats: a table for single planes of up to 4 bits, where one permutation reads it (it looks
/// at 4 bits of the index only, so the bits of neighbours above the code need no masking: their entries repeat).
template <class Format>
struct FloatLevels {
  static constexpr bool kByTable =
      Format::Codes::kHigh == 0 && Format::kBits <= 4 && (kCheapLookup || Format::Levels::kIsTable);
  struct Table {
    float levels[16];
  };
  static constexpr Table make_table() noexcept {
    Table t{};
    for (int i = 0; i < 16; ++i)
      t.levels[i] = Format::Levels::level(i & ((1 << (Format::kBits < 4 ? Format::kBits : 4)) - 1));
    return t;
  }
  static constexpr Table kTable = make_table();

  /// The four columns of step k, in order.
  static void step(const std::byte* codes, int k, Floats (&columns)[4]) noexcept {
    if constexpr (kByTable) {
      constexpr int kPerByte = 8 / Format::kBits;
      const Ints packed = load_quads(codes + k / kPerByte * kVectorBytes);
      for (int j = 0; j < 4; ++j) {
        columns[j] = lookup16(kTable.levels, shift_right(packed, 8 * j + Format::kBits * (k % kPerByte)));
      }
    } else {
      Ints quad = Format::Codes::step(codes, k);
      if constexpr (Format::kBits == 1) quad = quad + quad;  // levels are two apart
      quad = minus_bytes(quad, Format::Levels::zero);        // signed from here on
      for (int j = 0; j < 4; ++j) columns[j] = to_floats(shift_right_signed(shift_left(quad, 24 - 8 * j), 24));
    }
  }
};

template <class Format, int kTokens>
inline void exact_tile(const ProductArgs& a, const std::byte* panel, std::size_t first_row,
                       std::size_t token) noexcept {
  using Levels = FloatLevels<Format>;
  constexpr int kGroups = 32 / Format::Scales::kGroup;
  constexpr int kGroupSteps = kSteps / kGroups;
  constexpr int kChains = kTokens == 1 ? 4 : 1;  // one token alone would wait for each sum
  const typename Format::Scales scales(a.scale_group);
  Floats sums[kTokens];
  for (int t = 0; t < kTokens; ++t) sums[t] = splat(0.0f);
  PanelWalk<Format> walk(panel + kHeaderBytes<Format>, scales);
  walk.each_block((a.cols + 31) / 32, [&](std::size_t b, const std::byte* super, const std::byte* block,
                                          const std::byte* codes, int of_super) {
    for (int g = 0; g < kGroups; ++g) {
      Floats parts[kTokens][kChains];
      for (int t = 0; t < kTokens; ++t) {
        for (int c = 0; c < kChains; ++c) parts[t][c] = splat(0.0f);
      }
      for (int k = g * kGroupSteps; k < (g + 1) * kGroupSteps; ++k) {
        Floats columns[4];
        Levels::step(codes, k, columns);
        for (int j = 0; j < 4; ++j) {
          for (int t = 0; t < kTokens; ++t) {
            const float* x = a.in.x + (token + static_cast<std::size_t>(t)) * a.in.stride + b * 32;
            Floats& part = parts[t][j % kChains];
            part = fma(columns[j], splat(x[4 * k + j]), part);
          }
        }
      }
      const GroupScale group = scales.read(super, block, of_super, g);
      for (int t = 0; t < kTokens; ++t) {
        Floats part = parts[t][0];
        if constexpr (kChains == 4) part = (parts[t][0] + parts[t][1]) + (parts[t][2] + parts[t][3]);
        sums[t] = fma(group.scale, part, sums[t]);
        if constexpr (Format::Scales::kHasOffset) {
          const std::size_t at = (token + static_cast<std::size_t>(t)) * a.in.stride + b * 32;
          sums[t] = fma(group.offset, group_sum<kGroups>(a, at, g), sums[t]);
        }
      }
    }
  });
  store_tile<Format>(sums, panel, a, first_row, token);
}
