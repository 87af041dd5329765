// Products with int8 activations. For many tokens a panel is decoded once into a buffer of the second-level cache and
// then multiplied with all of them, a tile at a time.
//
// Per 32 columns and token there are 8 integer products, one conversion and two or three float operations. With 16
// lanes a tile of 12 tokens keeps 12 integer and 12 float sums in registers and leaves 8 for codes and scales; with 8
// lanes and 16 registers, 4 tokens. More tokens would spill, fewer would wait for the integer sums.

inline constexpr int kFastTile = kLanes == 16 ? 12 : 4;

/// Calls tile(integral_constant<tokens>, first token) until all tokens are covered, in tiles of kMost and then halves
/// of it.
template <int kMost, class Tile>
inline void each_tile(std::size_t batch, Tile tile) noexcept {
  std::size_t token = 0;
  for (; batch - token >= kMost; token += kMost) tile(std::integral_constant<int, kMost>{}, token);
  if constexpr (kMost > 1) {
    constexpr int kNext = kMost > 8 ? 8 : kMost / 2;
    const std::size_t done = token;
    each_tile<kNext>(batch - done, [&](auto tokens, std::size_t first) { tile(tokens, done + first); });
  }
}

/// A panel with one byte per code and float32 scales. Per block of 32 columns: 8 vectors of codes, one per step, then
/// scale and offset of each group.
template <class Format>
struct ExpandedPanel {
  static constexpr int kGroups = 32 / Format::Scales::kGroup;
  static constexpr std::size_t kCodeBytes = kSteps * kVectorBytes;
  static constexpr std::size_t kGroupBytes = 2 * kVectorBytes;
  static constexpr std::size_t kBlockBytes = kCodeBytes + kGroups * kGroupBytes;

  static void make(const ProductArgs& a, const std::byte* panel, std::byte* out) noexcept {
    const typename Format::Scales scales(a.scale_group);
    PanelWalk<Format> walk(panel + kHeaderBytes<Format>, scales);
    walk.each_block((a.cols + 31) / 32, [&](std::size_t, const std::byte* super, const std::byte* block,
                                            const std::byte* codes, int of_super) {
      for (int k = 0; k < kSteps; ++k) store_quads(DotCodes<Format>::quad(codes, k), out + k * kVectorBytes);
      for (int g = 0; g < kGroups; ++g) {
        const GroupScale group = scales.read(super, block, of_super, g);
        std::byte* at = out + kCodeBytes + static_cast<std::size_t>(g) * kGroupBytes;
        store_quads(bits_of(group.scale), at);
        store_quads(bits_of(group.offset), at + kVectorBytes);
      }
      out += kBlockBytes;
    });
  }
};

/// The tokens of one tile, side by side, so that a tile is read from front to back. Per block of 32 columns:
///   per token its 32 activations
///   per group and token: what its integer sum starts from, so that a weight of zero adds nothing
///   per token: the scale of its activations
///   per group and token: the sum of its activations
template <class Format, int kTokens>
struct TokenTile {
  static constexpr std::size_t kGroups = ExpandedPanel<Format>::kGroups;
  static constexpr std::size_t kStarts = kSteps * kTokens * 4;
  static constexpr std::size_t kScales = kStarts + kGroups * kTokens * 4;
  static constexpr std::size_t kSums = kScales + kTokens * 4;
  static constexpr std::size_t kBlockBytes = kSums + kGroups * kTokens * 4;

  static void make(const Activations& in, std::size_t blocks, std::size_t token, std::byte* out) noexcept {
    for (std::size_t b = 0; b < blocks; ++b, out += kBlockBytes) {
      for (std::size_t t = 0; t < kTokens; ++t) {
        const std::size_t at = (token + t) * in.stride + b * 32;
        __builtin_memcpy(out + t * 32, in.q + at, 32);
        __builtin_memcpy(out + kScales + t * 4, in.scales + at / 32, 4);
        for (std::size_t g = 0; g < kGroups; ++g) {
          const std::int32_t* codes = in.code_sums + at / 16;
          const float* sums = in.sums + at / 16;
          const std::int32_t start = -DotCodes<Format>::zero() * (kGroups == 2 ? codes[g] : codes[0] + codes[1]);
          const float sum = kGroups == 2 ? sums[g] : sums[0] + sums[1];
          __builtin_memcpy(out + kStarts + (g * kTokens + t) * 4, &start, 4);
          __builtin_memcpy(out + kSums + (g * kTokens + t) * 4, &sum, 4);
        }
      }
    }
  }
};

template <class T>
inline T read_as(const std::byte* from) noexcept {
  T value;
  __builtin_memcpy(&value, from, sizeof(T));
  return value;
}

template <class Format, int kTokens>
inline void batch_tile(const ProductArgs& a, const std::byte* block, const std::byte* tokens, const std::byte* panel,
                       std::size_t first_row, std::size_t token) noexcept {
  using Panel = ExpandedPanel<Format>;
  using Tile = TokenTile<Format, kTokens>;
  constexpr int kGroupSteps = kSteps / Panel::kGroups;
  Floats sums[kTokens];
  for (int t = 0; t < kTokens; ++t) sums[t] = splat(0.0f);
  for (std::size_t b = 0; b < (a.cols + 31) / 32; ++b, block += Panel::kBlockBytes, tokens += Tile::kBlockBytes) {
    Floats products[kTokens];
    unrolled<Panel::kGroups>([&](auto g) {
      const std::byte* starts = tokens + Tile::kStarts + g * kTokens * 4;
      Ints dots[kTokens];
      unrolled<kTokens>([&](auto t) {
        dots[t] = splat_int(DotCodes<Format>::zero() == 0 ? 0 : read_as<std::int32_t>(starts + t * 4));
      });
      unrolled<kGroupSteps>([&](auto step) {
        const int k = g * kGroupSteps + step;
        const Ints codes = load_quads(block + k * kVectorBytes);
        const std::int8_t* x = reinterpret_cast<const std::int8_t*>(tokens) + k * 4;
        unrolled<kTokens>([&](auto t) { dots[t] = DotCodes<Format>::dot(dots[t], codes, splat_quad(x + t * 32)); });
      });
      const std::byte* group = block + Panel::kCodeBytes + static_cast<std::size_t>(g) * Panel::kGroupBytes;
      const Floats scale = from_bits(load_quads(group));
      unrolled<kTokens>([&](auto t) {
        const Floats dot = to_floats(dots[t]);
        if constexpr (g == 0) {
          products[t] = scale * dot;
        } else {
          products[t] = fma(scale, dot, products[t]);
        }
      });
      if constexpr (Format::Scales::kHasOffset) {
        const Floats offset = splat(0.0f) - from_bits(load_quads(group + kVectorBytes));
        const std::byte* x_sums = tokens + Tile::kSums + g * kTokens * 4;
        unrolled<kTokens>([&](auto t) { sums[t] = fma(offset, splat(read_as<float>(x_sums + t * 4)), sums[t]); });
      }
    });
    unrolled<kTokens>(
        [&](auto t) { sums[t] = fma(products[t], splat(read_as<float>(tokens + Tile::kScales + t * 4)), sums[t]); });
  }
  for (int t = 0; t < kTokens; ++t) {
    store_sums<Format>(sums[t], panel, a, first_row, token + static_cast<std::size_t>(t));
  }
}

/// Panels that are expanded together: as many as half of a second-level cache of 1 MiB holds, so that each tile of
/// tokens, once fetched, meets all of them.
template <class Format>
inline std::size_t panels_together(std::size_t blocks) noexcept {
  const std::size_t fitting = (std::size_t{512} << 10) / (blocks * ExpandedPanel<Format>::kBlockBytes);
  return fitting < 1 ? 1 : fitting > 16 ? 16 : fitting;
}

/// The expanded panels, and all tokens as tiles.
template <class Format>
std::size_t fast_scratch_bytes(std::size_t cols, std::size_t batch) noexcept {
  const std::size_t blocks = (cols + 31) / 32;
  return blocks * (panels_together<Format>(blocks) * ExpandedPanel<Format>::kBlockBytes +
                   batch * TokenTile<Format, 1>::kBlockBytes);
}

template <class Format>
void fast_matmul(const ProductArgs& a) noexcept {
  const std::size_t bytes = panel_bytes<Format>(a.cols, a.scale_group);
  if (a.in.batch <= kFastTile) {
    for (std::size_t p = a.first_panel; p < a.last_panel; ++p) {
      each_tile<kFastTile>(a.in.batch, [&](auto tokens, std::size_t token) {
        fast_tile<Format, decltype(tokens)::value>(a, a.run + p * bytes, p * kLanes, token);
      });
    }
    return;
  }
  const std::size_t blocks = (a.cols + 31) / 32;
  const std::size_t together = panels_together<Format>(blocks);
  const std::size_t expanded_bytes = blocks * ExpandedPanel<Format>::kBlockBytes;
  const std::size_t token_bytes = blocks * TokenTile<Format, 1>::kBlockBytes;
  std::byte* expanded = a.scratch;
  std::byte* tiles = a.scratch + together * expanded_bytes;
  each_tile<kFastTile>(a.in.batch, [&](auto tokens, std::size_t token) {
    TokenTile<Format, decltype(tokens)::value>::make(a.in, blocks, token, tiles + token * token_bytes);
  });
  for (std::size_t first = a.first_panel; first < a.last_panel; first += together) {
    const std::size_t count = a.last_panel - first < together ? a.last_panel - first : together;
    for (std::size_t i = 0; i < count; ++i) {
      ExpandedPanel<Format>::make(a, a.run + (first + i) * bytes, expanded + i * expanded_bytes);
    }
    each_tile<kFastTile>(a.in.batch, [&](auto tokens, std::size_t token) {
      for (std::size_t i = 0; i < count; ++i) {
        batch_tile<Format, decltype(tokens)::value>(a, expanded + i * expanded_bytes, tiles + token * token_bytes,
                                                    a.run + (first + i) * bytes, (first + i) * kLanes, token);
      }
    });
  }
}

template <class Format>
void fast_matvec(const ProductArgs& a) noexcept {
  const std::size_t bytes = panel_bytes<Format>(a.cols, a.scale_group);
  for (std::size_t p = a.first_panel; p < a.last_panel; ++p) fast_tile<Format, 1>(a, a.run + p * bytes, p * kLanes, 0);
}
