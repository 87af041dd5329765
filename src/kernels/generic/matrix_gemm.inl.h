// Many tokens at once. A panel is decoded once into a buffer of the second-level cache and then multiplied with all
// tokens, a tile at a time.
//
// int8: per 32 columns and token 8 integer products, one conversion and two or three float operations. With 16 lanes a
// tile of 12 tokens keeps 12 integer and 12 float sums in registers and leaves 8 for codes and scales; with 8 lanes and
// 16 registers, 4 tokens. More tokens would spill, fewer would wait for the integer sums.
//
// float32: two panels share each broadcast activation, so that loads stay behind multiplications: 24 sums of 32
// registers (2 × 12), or 12 of 16 (2 × 6).

inline constexpr int kFastTile = kLanes == 16 ? 12 : 4;
inline constexpr int kExactTile = kLanes == 16 ? 8 : 4;
inline constexpr int kFloatTile = kLanes == 16 ? 12 : 6;
/// Columns of the float32 product that are decoded at a time: two panels of them take 64 KiB with 16 lanes.
inline constexpr std::size_t kChunkColumns = 512;

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

// ---- int8

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

// ---- float32

/// Bytes of a float32 product: two decoded panels, and all tokens of a chunk of columns.
inline std::size_t float_scratch_bytes(std::size_t, std::size_t batch) noexcept {
  const std::size_t tokens = (batch + kFloatTile - 1) / kFloatTile * kFloatTile;
  return (2 * kLanes + tokens) * kChunkColumns * sizeof(float);
}

/// Tokens of columns [first, first + count), regrouped so that the tokens of a tile lie together; missing tokens are
/// zeros.
inline void regroup_tokens(const Activations& in, std::size_t first, std::size_t count, float* out) noexcept {
  for (std::size_t token = 0; token < in.batch; token += kFloatTile) {
    for (std::size_t c = 0; c < count; ++c) {
      for (std::size_t t = 0; t < kFloatTile; ++t) {
        *out++ = token + t < in.batch ? in.x[(token + t) * in.stride + first + c] : 0.0f;
      }
    }
  }
}

/// y[tokens][2 · kLanes rows] += the products of `count` columns; sums start from y unless this is the first chunk.
inline void float_tile(const float* weights, const float* x, std::size_t count, const ProductArgs& a,
                       std::size_t first_row, std::size_t token, bool is_first) noexcept {
  Floats sums[2][kFloatTile];
  for (int t = 0; t < kFloatTile; ++t) sums[0][t] = sums[1][t] = splat(0.0f);
  const float* second = weights + kChunkColumns * kLanes;
  for (std::size_t c = 0; c < count; ++c) {
    const Floats w0 = load_floats(weights + c * kLanes);
    const Floats w1 = load_floats(second + c * kLanes);
    for (int t = 0; t < kFloatTile; ++t) {
      const Floats xt = splat(x[c * kFloatTile + static_cast<std::size_t>(t)]);
      sums[0][t] = fma(w0, xt, sums[0][t]);
      sums[1][t] = fma(w1, xt, sums[1][t]);
    }
  }
  for (std::size_t t = 0; t < kFloatTile && token + t < a.in.batch; ++t) {
    for (std::size_t half = 0; half < 2; ++half) {
      const std::size_t row = first_row + half * kLanes;
      if (row >= a.rows) break;
      const int rows = a.rows - row < kLanes ? static_cast<int>(a.rows - row) : kLanes;
      float* y = a.y + (token + t) * a.y_stride + row;
      float before[kLanes] = {};
      const float* base = is_first ? (a.bias == nullptr ? nullptr : a.bias + row) : y;
      if (base != nullptr) __builtin_memcpy(before, base, static_cast<std::size_t>(rows) * sizeof(float));
      store_some(sums[half][t] + load_floats(before), y, rows);
    }
  }
}

/// The product of any format that `decode(panel, first column, count, out[count][kLanes])` turns into floats.
template <class Decode>
inline void float_matmul(const ProductArgs& a, std::size_t bytes, Decode decode) noexcept {
  float* weights = reinterpret_cast<float*>(a.scratch);
  float* x = weights + 2 * kLanes * kChunkColumns;
  for (std::size_t first = 0; first < a.cols; first += kChunkColumns) {
    const std::size_t count = a.cols - first < kChunkColumns ? a.cols - first : kChunkColumns;
    regroup_tokens(a.in, first, count, x);
    for (std::size_t p = a.first_panel; p < a.last_panel; p += 2) {
      const bool is_pair = p + 1 < a.last_panel;
      decode(a.run + p * bytes, first, count, weights);
      if (is_pair) decode(a.run + (p + 1) * bytes, first, count, weights + kLanes * kChunkColumns);
      ProductArgs part = a;
      if (!is_pair && part.rows > (p + 1) * kLanes) part.rows = (p + 1) * kLanes;  // the second half is not ours
      for (std::size_t token = 0; token < a.in.batch; token += kFloatTile) {
        float_tile(weights, x + token * count, count, part, p * kLanes, token, first == 0);
      }
    }
  }
}

/// Decodes columns of one panel, scales and offsets applied.
template <class Format>
inline void decode_columns(const std::byte* panel, const ProductArgs& a, std::size_t first, std::size_t count,
                           float* out) noexcept {
  using Levels = FloatLevels<Format>;
  constexpr int kGroups = 32 / Format::Scales::kGroup;
  const typename Format::Scales scales(a.scale_group);
  Floats row_scale = splat(1.0f);
  if constexpr (kHasRowScales<Format>) row_scale = from_bits(load_32(panel));
  // Chunks begin at a multiple of 256 columns: skip whole super-blocks.
  const std::size_t super_size = scales.super_bytes() + 8 * PanelWalk<Format>::kBlockBytes;
  PanelWalk<Format> walk(panel + kHeaderBytes<Format> + first / 256 * super_size, scales);
  walk.each_block((count + 31) / 32, [&](std::size_t b, const std::byte* super, const std::byte* block,
                                         const std::byte* codes, int of_super) {
    const std::size_t left = count - b * 32;  // the last block may be short
    for (int k = 0; k < kSteps; ++k) {
      GroupScale group = scales.read(super, block, of_super, k / (kSteps / kGroups));
      group.scale = group.scale * row_scale;
      Floats columns[4];
      Levels::step(codes, k, columns);
      for (std::size_t j = 0; j < 4; ++j) {
        const std::size_t column = static_cast<std::size_t>(k) * 4 + j;
        if (column < left) store_floats(group.scale * columns[j] - group.offset, out + (b * 32 + column) * kLanes);
      }
    }
  });
}

template <class Format>
void exact_matmul(const ProductArgs& a) noexcept {
  const std::size_t bytes = panel_bytes<Format>(a.cols, a.scale_group);
  if (a.in.batch > kExactTile) {
    float_matmul(a, bytes, [&](const std::byte* panel, std::size_t first, std::size_t count, float* out) {
      decode_columns<Format>(panel, a, first, count, out);
    });
    return;
  }
  for (std::size_t p = a.first_panel; p < a.last_panel; ++p) {
    each_tile<kExactTile>(a.in.batch, [&](auto tokens, std::size_t token) {
      exact_tile<Format, decltype(tokens)::value>(a, a.run + p * bytes, p * kLanes, token);
    });
  }
}

template <class Format>
std::size_t exact_scratch_bytes(std::size_t cols, std::size_t batch) noexcept {
  const std::size_t floats = float_scratch_bytes(cols, batch);
  const std::size_t bits = kUsesBitSums<Format> ? bit_sums_bytes(cols) : 0;
  return batch == 1 ? bits : floats;
}

template <class Format>
void exact_matvec(const ProductArgs& a) noexcept {
  const std::size_t bytes = panel_bytes<Format>(a.cols, a.scale_group);
  if constexpr (kUsesBitSums<Format>) {
    float* tables = reinterpret_cast<float*>(a.scratch);
    make_bit_sums(a.in.x, (a.cols + 31) / 32, tables);
    for (std::size_t p = a.first_panel; p < a.last_panel; ++p) {
      bit_sums_tile<Format>(a, a.run + p * bytes, p * kLanes, tables);
    }
    return;
  }
  for (std::size_t p = a.first_panel; p < a.last_panel; ++p) exact_tile<Format, 1>(a, a.run + p * bytes, p * kLanes, 0);
}
