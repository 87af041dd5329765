// Products of panels with one or several tokens.
//
// A tile is one panel (kLanes rows) times kTokens tokens, with all sums in registers: every vector of codes is decoded
// once and used for all tokens of the tile. No sum ever crosses lanes.

/// How far ahead a product asks for memory. Where the processor wants to be asked (ProductArgs::far_ahead), all do:
/// first for the second-level cache, then for the first. Elsewhere only heavy products do, exact ones of small codes.
/// They compute so much per byte that arithmetic fills the processor's window, nothing in it touches the lines to come,
/// and the hardware's own prefetching runs dry. The few operations of light ones do not, and asking costs them a tenth.
struct Ahead {
  std::size_t far, near;  // 0: not asked for

  static Ahead of_heavy(const ProductArgs& a) noexcept {
    return {a.far_ahead, a.far_ahead == 0 ? std::size_t{1024} : a.far_ahead / 4};
  }
  static Ahead of_light(const ProductArgs& a) noexcept { return {a.far_ahead, a.far_ahead / 4}; }

  /// (Always inlined: to GCC asking has no effect, and it leaves out calls of functions that only ask.)
  [[gnu::always_inline]] void ask_for(const std::byte* block, std::size_t bytes) const noexcept {
    if (far != 0) {
      for (std::size_t line = 0; line < bytes; line += 64) __builtin_prefetch(block + far + line, 0, 2);
    }
    if (near != 0) {
      for (std::size_t line = 0; line < bytes; line += 64) __builtin_prefetch(block + near + line);
    }
  }
};

/// Walks a panel: the places of the scales and codes of each block of 32 columns, in order.
template <class Format>
struct PanelWalk {
  using Scales = typename Format::Scales;
  static constexpr std::size_t kBlockBytes = Scales::kBlockBytes + Format::Codes::kBytes;

  PanelWalk(const std::byte* panel, const Scales& layout, Ahead asked) noexcept
      : at(panel), scales(layout), ahead(asked) {}

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
      ahead.ask_for(at, kBlockBytes);
      body(b, super, at, at + Scales::kBlockBytes, of_super);
      at += kBlockBytes;
    }
  }

  const std::byte* at;
  const Scales& scales;
  const Ahead ahead;
};

template <class Format>
inline constexpr bool kHasRowScales = std::is_same_v<typename Format::Scales, FloatScales<false>> ||
                                      std::is_same_v<typename Format::Scales, FloatScales<true>>;

/// Bytes in front of the blocks: one float32 scale per row, for scalar types.
template <class Format>
inline constexpr std::size_t kHeaderBytes = kHasRowScales<Format> ? 4 * kLanes : 0;

template <class Format>
std::size_t panel_bytes(std::size_t cols, std::size_t scale_group) noexcept {
  const std::size_t blocks = (cols + 31) / 32;
  const typename Format::Scales scales(scale_group);
  return kHeaderBytes<Format> + (blocks + 7) / 8 * scales.super_bytes() + blocks * PanelWalk<Format>::kBlockBytes;
}

/// The first `count` of these values, zeros after them.
inline Floats load_some(const float* from, int count) noexcept {
  if (count == kLanes) return load_floats(from);
  float values[kLanes] = {};
  __builtin_memcpy(values, from, static_cast<std::size_t>(count) * sizeof(float));
  return load_floats(values);
}

/// What is added to the sums of `count` rows from `row` on: the bias, and what is left of the zero points.
inline Floats with_offsets(Floats sum, const ProductArgs& a, std::size_t row, int count, std::size_t token) noexcept {
  if (a.bias != nullptr) sum = sum + load_some(a.bias + row, count);
  if (a.row_offsets != nullptr) {
    sum = fused(load_some(a.row_offsets + row, count), splat(a.in.totals[token]), sum);
  }
  return sum;
}

/// Adds bias and offsets, and stores the rows that exist.
inline void store_rows(Floats sum, const ProductArgs& a, std::size_t first_row, std::size_t token) noexcept {
  const std::size_t left = a.rows - first_row;
  const int count = left < kLanes ? static_cast<int>(left) : kLanes;
  store_some(with_offsets(sum, a, first_row, count, token), a.y + token * a.y_stride + first_row, count);
}

/// Where the scales of the rows are; null for formats without.
template <class Format>
inline const std::byte* row_scales(const std::byte* panel) noexcept {
  return kHasRowScales<Format> ? panel : nullptr;
}

/// The sums of a tile, times the scales of the rows unless those are null.
template <int kTokens>
inline void store_tile(const Floats (&sums)[kTokens], const std::byte* scales, const ProductArgs& a,
                       std::size_t first_row, std::size_t token) noexcept {
  for (int t = 0; t < kTokens; ++t) {
    const Floats sum = scales == nullptr ? sums[t] : sums[t] * from_bits(load_32(scales));
    store_rows(sum, a, first_row, token + static_cast<std::size_t>(t));
  }
}

/// Minus the sum of a token's activations over group g of the block that begins at column `at`: what an offset
/// multiplies.
template <int kGroups>
inline Floats group_sum(const ProductArgs& a, std::size_t at, int g) noexcept {
  return splat(kGroups == 2 ? -a.in.sums[at / 16 + static_cast<std::size_t>(g)] : a.in.block_sums[at / 32]);
}

// Products of codes with int8 activations, for one or a few tokens.

/// The same four activations in every lane.
inline Ints splat_quad(const std::int8_t* from) noexcept {
  std::int32_t quad;
  __builtin_memcpy(&quad, from, 4);
  return splat_int(quad);
}

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
  /// What makes the levels of a table unsigned.
  static constexpr int kBias = [] {
    if constexpr (kSigned || !Levels::kIsTable) {
      return 0;
    } else {
      return kWide ? 128 : Levels::largest;
    }
  }();
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
  /// From one code to the next; a factor of the finished sum.
  static constexpr int kStep = [] {
    if constexpr (Levels::kIsTable) {
      return 1;
    } else {
      return Levels::step;
    }
  }();

  static Ints quad(const std::byte* codes, int k) noexcept {
    const Ints raw = Format::Codes::step(codes, k);
    if constexpr (Levels::kIsTable) return lookup_bytes(kTable.bytes, raw);
    if constexpr (kSigned) return flip_bits(raw, static_cast<std::int32_t>(0x80808080u));
    return raw;
  }
};

/// What an integer product has to know of a format at compile time. Formats that agree in this share their code.
template <int kGroupCount, bool kOffsets, bool kSignedCodes>
struct DotKind {
  static constexpr int kGroups = kGroupCount;
  static constexpr bool kHasOffset = kOffsets;
  static constexpr bool kSigned = kSignedCodes;
};
template <class Format>
using DotKindOf = DotKind<32 / Format::Scales::kGroup, Format::Scales::kHasOffset, DotCodes<Format>::kSigned>;

/// What to add to an integer sum over group g of the block at column `at`, where a weight of zero has the code `zero`:
/// integers cancel exactly. (Always inlined: a call would put all sums of a tile into memory.)
template <int kGroups>
[[gnu::always_inline]] inline Ints zeros_of_group(const ProductArgs& a, std::size_t at, int g,
                                                  std::int32_t zero) noexcept {
  const std::int32_t sum =
      kGroups == 2 ? a.in.code_sums[at / 16 + static_cast<std::size_t>(g)] : a.in.block_code_sums[at / 32];
  return splat_int(sum) * splat_int(-zero);
}

/// sums[p][t] += the products of one block of 32 columns; quad(p, k) gives the codes of panel p and step k, whose
/// levels are kStep · code - zero. Panels share every splat of activations, which would otherwise cost a load per
/// product.
template <class Kind, int kStep, int kPanels, class Quad, int kTokens>
inline void fast_block(Quad quad, std::int32_t zero, const GroupScale (&groups)[kPanels][Kind::kGroups],
                       const ProductArgs& a, std::size_t token, std::size_t b,
                       Floats (&sums)[kPanels][kTokens]) noexcept {
  constexpr int kGroups = Kind::kGroups;
  constexpr int kGroupSteps = kSteps / kGroups;
  const auto of_token = [&](std::size_t t) { return (token + t) * a.in.stride + b * 32; };  // where its columns begin
  Floats products[kPanels][kTokens];
  unrolled<kGroups>([&](auto g) {
    Ints dots[kPanels][kTokens];
    unrolled<kTokens>([&](auto t) {
      const Ints start = kStep == 1 ? zeros_of_group<kGroups>(a, of_token(t), g, zero) : splat_int(0);
      unrolled<kPanels>([&](auto p) { dots[p][t] = start; });
    });
    unrolled<kGroupSteps>([&](auto i) {
      constexpr int k = g * kGroupSteps + i;
      Ints codes[kPanels];
      unrolled<kPanels>([&](auto p) { codes[p] = quad(p, k); });
      unrolled<kTokens>([&](auto t) {
        const Ints x = splat_quad(a.in.q + of_token(t) + 4 * k);
        unrolled<kPanels>([&](auto p) {
          dots[p][t] = Kind::kSigned ? dot_signed(dots[p][t], codes[p], x) : dot_unsigned(dots[p][t], codes[p], x);
        });
      });
    });
    unrolled<kTokens>([&](auto t) {
      unrolled<kPanels>([&](auto p) {
        if constexpr (kStep == 2) {
          dots[p][t] = dots[p][t] + dots[p][t] + zeros_of_group<kGroups>(a, of_token(t), g, zero);
        }
        const Floats dot = to_floats(dots[p][t]);
        if constexpr (g == 0) {
          products[p][t] = groups[p][g].scale * dot;
        } else {
          products[p][t] = fused(groups[p][g].scale, dot, products[p][t]);
        }
        if constexpr (Kind::kHasOffset) {
          sums[p][t] = fused(groups[p][g].offset, group_sum<kGroups>(a, of_token(t), g), sums[p][t]);
        }
      });
    });
  });
  unrolled<kTokens>([&](auto t) {
    const Floats scale = splat(a.in.scales[of_token(t) / 32]);
    unrolled<kPanels>([&](auto p) { sums[p][t] = fused(products[p][t], scale, sums[p][t]); });
  });
}

/// kPanels panels, `apart` bytes from one to the next, times kTokens tokens.
template <class Format, int kTokens, int kPanels>
inline void fast_tile(const ProductArgs& a, const std::byte* panel, std::size_t apart, std::size_t first_row,
                      std::size_t token) noexcept {
  using Dot = DotCodes<Format>;
  static_assert(Dot::kStep == 1 || Dot::kStep == 2);
  constexpr int kGroups = 32 / Format::Scales::kGroup;
  const typename Format::Scales scales(a.scale_group);
  Floats sums[kPanels][kTokens];
  unrolled<kPanels>([&](auto p) { unrolled<kTokens>([&](auto t) { sums[p][t] = splat(0.0f); }); });
  PanelWalk<Format> walk(panel + kHeaderBytes<Format>, scales, Ahead::of_light(a));
  walk.each_block((a.cols + 31) / 32, [&](std::size_t b, const std::byte* super, const std::byte* block,
                                          const std::byte* codes, int of_super) {
    if constexpr (kPanels > 1) walk.ahead.ask_for(block + apart, PanelWalk<Format>::kBlockBytes);
    GroupScale groups[kPanels][kGroups];
    unrolled<kPanels>([&](auto p) {
      unrolled<kGroups>([&](auto g) { groups[p][g] = scales.read(super + p * apart, block + p * apart, of_super, g); });
    });
    fast_block<DotKindOf<Format>, Dot::kStep, kPanels>([&](auto p, int k) { return Dot::quad(codes + p * apart, k); },
                                                       Dot::zero(), groups, a, token, b, sums);
  });
  unrolled<kPanels>(
      [&](auto p) { store_tile(sums[p], row_scales<Format>(panel + p * apart), a, first_row + p * kLanes, token); });
}
