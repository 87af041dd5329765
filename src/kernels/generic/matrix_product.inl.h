// Products of a run form with one or several tokens.
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
  const float* sums = a.in.sums + at / 16;
  return splat(kGroups == 2 ? -sums[g] : -(sums[0] + sums[1]));
}
