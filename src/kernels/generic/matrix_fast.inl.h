// Products with int8 activations. For many tokens a panel is decoded once into a buffer of the second-level cache and
// then multiplied with all of them, a tile at a time.
//
// Per 32 columns, token and panel there are 8 integer products, one conversion and two or three float operations. Two
// panels share each splat of four activations, which costs a slot beside the products. With 32 registers a tile of 2
// panels and 6 tokens keeps 12 integer and 12 float sums in them and leaves 8 for codes, splat and scales. A second
// group needs more float sums: 4 tokens. With 16 registers, one panel and 4 tokens.

inline constexpr int kFastPanels = kRegisters == 32 ? 2 : 1;
template <class Kind>
inline constexpr int kFastTile = kRegisters != 32 || Kind::kGroups == 2 ? 4 : 6;

/// Up to this many tokens a product reads the panels themselves, anew for every four tokens: decoding them again costs
/// less than writing the buffer and reading it back. With two panels to share each splat the two ways meet at some 48
/// tokens (Zen 5), with one at 4.
inline constexpr int kFewTokens = kFastPanels == 2 ? 32 : 4;

/// Calls body(integral_constant<panels>, first panel) until all panels are covered, kFastPanels at a time and then one.
template <class Body>
inline void each_panels(std::size_t first, std::size_t last, Body body) noexcept {
  for (; first + kFastPanels <= last; first += kFastPanels) body(std::integral_constant<int, kFastPanels>{}, first);
  if constexpr (kFastPanels > 1) {
    for (; first < last; ++first) body(std::integral_constant<int, 1>{}, first);
  }
}

/// Calls tile(integral_constant<tokens>, first token) until all tokens are covered, in tiles of kMost and then halves
/// of it.
template <int kMost, class Tile>
inline void each_tile(std::size_t batch, Tile tile) noexcept {
  std::size_t token = 0;
  for (; batch - token >= kMost; token += kMost) tile(std::integral_constant<int, kMost>{}, token);
  if constexpr (kMost > 1) {
    constexpr int kNext = kMost > 4 ? 4 : kMost / 2;
    const std::size_t done = token;
    each_tile<kNext>(batch - done, [&](auto tokens, std::size_t first) { tile(tokens, done + first); });
  }
}

/// A panel with one byte per code and float32 scales, the same for all formats of a kind. Per block of 32 columns: 8
/// vectors of codes, one per step, then scale and offset of each group.
template <class Kind>
struct ExpandedPanel {
  static constexpr int kGroups = Kind::kGroups;
  static constexpr std::size_t kCodeBytes = kSteps * kVectorBytes;
  static constexpr std::size_t kGroupBytes = 2 * kVectorBytes;
  static constexpr std::size_t kBlockBytes = kCodeBytes + kGroups * kGroupBytes;

  template <class Format>
  static void make(const ProductArgs& a, const std::byte* panel, std::byte* out) noexcept {
    const typename Format::Scales scales(a.scale_group);
    PanelWalk<Format> walk(panel + kHeaderBytes<Format>, scales, Ahead::of_light(a));
    walk.each_block((a.cols + 31) / 32, [&](std::size_t, const std::byte* super, const std::byte* block,
                                            const std::byte* codes, int of_super) {
      for (int k = 0; k < kSteps; ++k) {
        const Ints quad = DotCodes<Format>::quad(codes, k);
        store_32(DotCodes<Format>::kStep == 1 ? quad : quad + quad, out + k * kVectorBytes);
      }
      for (int g = 0; g < kGroups; ++g) {
        const GroupScale group = scales.read(super, block, of_super, g);
        std::byte* at = out + kCodeBytes + static_cast<std::size_t>(g) * kGroupBytes;
        store_32(bits_of(group.scale), at);
        store_32(bits_of(group.offset), at + kVectorBytes);
      }
      out += kBlockBytes;
    });
  }

  /// kPanels panels, `apart` bytes from one to the next, times kTokens tokens.
  /// (Flattened: a call in its loop would put all sums into memory, and whether GCC makes one hangs on trifles.)
  template <int kPanels, int kTokens>
  [[gnu::flatten]] static void tile(const ProductArgs& a, const std::byte* expanded, std::size_t apart,
                                    std::int32_t zero, const std::byte* row_scales, std::size_t row_scales_apart,
                                    std::size_t first_row, std::size_t token) noexcept {
    Floats sums[kPanels][kTokens];
    unrolled<kPanels>([&](auto p) { unrolled<kTokens>([&](auto t) { sums[p][t] = splat(0.0f); }); });
    for (std::size_t b = 0; b < (a.cols + 31) / 32; ++b, expanded += kBlockBytes) {
      GroupScale groups[kPanels][kGroups];
      unrolled<kPanels>([&](auto p) {
        unrolled<kGroups>([&](auto g) {
          const std::byte* at = expanded + p * apart + kCodeBytes + static_cast<std::size_t>(g) * kGroupBytes;
          groups[p][g] = {from_bits(load_32(at)), from_bits(load_32(at + kVectorBytes))};
        });
      });
      fast_block<Kind, 1, kPanels>([&](auto p, int k) { return load_32(expanded + p * apart + k * kVectorBytes); },
                                   zero, groups, a, token, b, sums);
    }
    unrolled<kPanels>([&](auto p) {
      const std::byte* scales = row_scales == nullptr ? nullptr : row_scales + p * row_scales_apart;
      store_tile(sums[p], scales, a, first_row + p * kLanes, token);
    });
  }

  /// Panels that are expanded together: as many as half of a second-level cache of 1 MiB holds, so that each tile of
  /// tokens, once fetched, meets all of them.
  static std::size_t panels_together(std::size_t blocks) noexcept {
    const std::size_t fitting = (std::size_t{512} << 10) / (blocks * kBlockBytes);
    const std::size_t whole = fitting / kFastPanels * kFastPanels;
    return whole < kFastPanels ? kFastPanels : whole > 16 ? 16 : whole;
  }

  /// All tokens with `count` expanded panels, the first of them panel `first` of the matrix.
  static void multiply(const ProductArgs& a, std::size_t first, std::size_t count, std::int32_t zero,
                       std::size_t panel_bytes, bool has_row_scales) noexcept {
    const std::size_t expanded_bytes = (a.cols + 31) / 32 * kBlockBytes;
    each_tile<kFastTile<Kind>>(a.in.batch, [&](auto tokens, std::size_t token) {
      const auto with = [&](auto panels, std::size_t i) {
        const std::byte* scales = has_row_scales ? a.run + (first + i) * panel_bytes : nullptr;
        tile<decltype(panels)::value, decltype(tokens)::value>(a, a.scratch + i * expanded_bytes, expanded_bytes, zero,
                                                               scales, panel_bytes, (first + i) * kLanes, token);
      };
      each_panels(0, count, with);
    });
  }
};

template <class Format>
std::size_t fast_scratch_bytes(std::size_t cols, std::size_t batch) noexcept {
  using Expanded8 = ExpandedPanel<DotKindOf<Format>>;
  const std::size_t blocks = (cols + 31) / 32;
  return batch <= kFewTokens ? 0 : blocks * Expanded8::panels_together(blocks) * Expanded8::kBlockBytes;
}

template <class Format>
void fast_matmul(const ProductArgs& a) noexcept {
  using Expanded8 = ExpandedPanel<DotKindOf<Format>>;
  const std::size_t bytes = panel_bytes<Format>(a.cols, a.scale_group);
  if (a.in.batch <= kFewTokens) {
    each_panels(a.first_panel, a.last_panel, [&](auto panels, std::size_t p) {
      each_tile<4>(a.in.batch, [&](auto tokens, std::size_t token) {
        fast_tile<Format, decltype(tokens)::value, decltype(panels)::value>(a, a.run + p * bytes, bytes, p * kLanes,
                                                                            token);
      });
    });
    return;
  }
  const std::size_t blocks = (a.cols + 31) / 32;
  const std::size_t together = Expanded8::panels_together(blocks);
  for (std::size_t first = a.first_panel; first < a.last_panel; first += together) {
    const std::size_t count = a.last_panel - first < together ? a.last_panel - first : together;
    for (std::size_t i = 0; i < count; ++i) {
      Expanded8::template make<Format>(a, a.run + (first + i) * bytes, a.scratch + i * blocks * Expanded8::kBlockBytes);
    }
    Expanded8::multiply(a, first, count, DotCodes<Format>::zero(), bytes, kHasRowScales<Format>);
  }
}

template <class Format>
void fast_matvec(const ProductArgs& a) noexcept {
  const std::size_t bytes = panel_bytes<Format>(a.cols, a.scale_group);
  for (std::size_t p = a.first_panel; p < a.last_panel; ++p) {
    fast_tile<Format, 1, 1>(a, a.run + p * bytes, 0, p * kLanes, 0);
  }
}
