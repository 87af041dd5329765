// Products of codes with int8 activations, for one or a few tokens.

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
  const std::int32_t* codes = a.in.code_sums + at / 16;
  return splat_int(-zero * (kGroups == 2 ? codes[g] : codes[0] + codes[1]));
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
          products[p][t] = fma(groups[p][g].scale, dot, products[p][t]);
        }
        if constexpr (Kind::kHasOffset) {
          sums[p][t] = fma(groups[p][g].offset, group_sum<kGroups>(a, of_token(t), g), sums[p][t]);
        }
      });
    });
  });
  unrolled<kTokens>([&](auto t) {
    const Floats scale = splat(a.in.scales[of_token(t) / 32]);
    unrolled<kPanels>([&](auto p) { sums[p][t] = fma(products[p][t], scale, sums[p][t]); });
  });
}

template <class Format, int kTokens>
inline void fast_tile(const ProductArgs& a, const std::byte* panel, std::size_t first_row, std::size_t token) noexcept {
  using Dot = DotCodes<Format>;
  static_assert(Dot::kStep == 1 || Dot::kStep == 2);
  constexpr int kGroups = 32 / Format::Scales::kGroup;
  const typename Format::Scales scales(a.scale_group);
  Floats sums[1][kTokens];
  for (int t = 0; t < kTokens; ++t) sums[0][t] = splat(0.0f);
  PanelWalk<Format> walk(panel + kHeaderBytes<Format>, scales, Ahead::of_light(a));
  walk.each_block((a.cols + 31) / 32, [&](std::size_t b, const std::byte* super, const std::byte* block,
                                          const std::byte* codes, int of_super) {
    GroupScale groups[1][kGroups];
    for (int g = 0; g < kGroups; ++g) groups[0][g] = scales.read(super, block, of_super, g);
    fast_block<DotKindOf<Format>, Dot::kStep, 1>([&](int, int k) { return Dot::quad(codes, k); }, Dot::zero(), groups,
                                                 a, token, b, sums);
  });
  store_tile(sums[0], row_scales<Format>(panel), a, first_row, token);
}
