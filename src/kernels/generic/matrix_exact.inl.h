// Products with float32 activations. Of many tokens, two panels share each broadcast activation, so that loads stay
// behind multiplications: 24 sums of 32 registers (2 × 12), or 12 of 16 (2 × 6).

/// Up to this many tokens, in tiles of kDirectTile, weights are decoded in registers for each tile; from there on it is
/// cheaper to decode them once into memory.
inline constexpr int kDirectTokens = 12;
inline constexpr int kDirectTile = kRegisters == 32 ? 4 : 2;
/// Sums of a token in a tile: one token alone would wait for each. The same for any number of tokens, so that each gets
/// what it gets alone.
inline constexpr int kChains = 4;
inline constexpr int kFloatTile = kRegisters == 32 ? 12 : 6;
/// Columns that are decoded at a time: two panels of them take 64 KiB with 16 lanes.
inline constexpr std::size_t kChunkColumns = 512;

/// Bytes of a float32 product: two decoded panels, and all tokens of a chunk of columns. None for few tokens.
inline std::size_t float_scratch_bytes(std::size_t, std::size_t batch) noexcept {
  const std::size_t tokens = (batch + kFloatTile - 1) / kFloatTile * kFloatTile;
  return batch <= kDirectTokens ? 0 : (2 * kLanes + tokens) * kChunkColumns * sizeof(float);
}

/// Tokens of the tile that begins at `token`: all of a tile or, at the end of a batch, one or two thirds.
inline std::size_t float_tile_tokens(std::size_t batch, std::size_t token) noexcept {
  constexpr std::size_t kThird = kFloatTile / 3;
  return batch - token >= kFloatTile ? kFloatTile : (batch - token + kThird - 1) / kThird * kThird;
}

/// Tokens of columns [first, first + count), regrouped so that the tokens of a tile lie together; missing tokens are
/// zeros.
inline void regroup_tokens(const Activations& in, std::size_t first, std::size_t count, float* out) noexcept {
  for (std::size_t token = 0; token < in.batch; token += kFloatTile) {
    const std::size_t tokens = float_tile_tokens(in.batch, token);
    for (std::size_t c = 0; c < count; ++c) {
      for (std::size_t t = 0; t < tokens; ++t) {
        *out++ = token + t < in.batch ? in.x[(token + t) * in.stride + first + c] : 0.0f;
      }
    }
  }
}

/// y[tokens][2 · kLanes rows] += the products of `count` columns; sums start from y unless this is the first chunk.
template <int kTokens>
inline void float_tile(const float* weights, const float* x, std::size_t count, const ProductArgs& a,
                       std::size_t first_row, std::size_t token, bool is_first) noexcept {
  Floats sums[2][kTokens];
  for (int t = 0; t < kTokens; ++t) sums[0][t] = sums[1][t] = splat(0.0f);
  const float* second = weights + kChunkColumns * kLanes;
  for (std::size_t c = 0; c < count; ++c) {
    const Floats w0 = load_floats(weights + c * kLanes);
    const Floats w1 = load_floats(second + c * kLanes);
    for (int t = 0; t < kTokens; ++t) {
      const Floats xt = splat(x[c * kTokens + static_cast<std::size_t>(t)]);
      sums[0][t] = fused(w0, xt, sums[0][t]);
      sums[1][t] = fused(w1, xt, sums[1][t]);
    }
  }
  for (std::size_t t = 0; t < kTokens && token + t < a.in.batch; ++t) {
    for (std::size_t half = 0; half < 2; ++half) {
      const std::size_t row = first_row + half * kLanes;
      if (row >= a.rows) break;
      const int rows = a.rows - row < kLanes ? static_cast<int>(a.rows - row) : kLanes;
      float* y = a.y + (token + t) * a.y_stride + row;
      const Floats sum = sums[half][t];
      store_some(is_first ? with_offsets(sum, a, row, rows, token + t) : sum + load_some(y, rows), y, rows);
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
        const std::size_t tokens = float_tile_tokens(a.in.batch, token);
        const auto tile = tokens == kFloatTile           ? float_tile<kFloatTile>
                          : tokens == kFloatTile / 3 * 2 ? float_tile<kFloatTile / 3 * 2>
                                                         : float_tile<kFloatTile / 3>;
        tile(weights, x + token * count, count, part, p * kLanes, token, first == 0);
      }
    }
  }
}

/// Decodes columns [first, first + count) of one panel, scales and offsets applied: body(column - first, four columns),
/// for whole blocks of 32. REQUIRES: first is a multiple of 256.
template <class Format, class Body>
inline void each_four_columns(const std::byte* panel, const ProductArgs& a, std::size_t first, std::size_t count,
                              Body body) noexcept {
  using Levels = FloatLevels<Format>;
  constexpr int kGroups = 32 / Format::Scales::kGroup;
  const typename Format::Scales scales(a.scale_group);
  Floats row_scale = splat(1.0f);
  if constexpr (kHasRowScales<Format>) row_scale = from_bits(load_32(panel));
  row_scale = row_scale * splat(Levels::kUnit);
  const std::size_t super_size = scales.super_bytes() + 8 * PanelWalk<Format>::kBlockBytes;
  PanelWalk<Format> walk(panel + kHeaderBytes<Format> + first / 256 * super_size, scales, Ahead::of_light(a));
  walk.each_block((count + 31) / 32, [&](std::size_t b, const std::byte* super, const std::byte* block,
                                         const std::byte* codes, int of_super) {
    unrolled<kGroups>([&](auto g) {
      GroupScale group = scales.read(super, block, of_super, g);
      group.scale = group.scale * row_scale;
      unrolled<kSteps / kGroups>([&](auto i) {
        constexpr int k = g * (kSteps / kGroups) + i;
        Floats columns[4];
        Levels::step(codes, k, columns);
        for (Floats& column : columns) {
          column = group.scale * column;
          if constexpr (Format::Scales::kHasOffset) column = column - group.offset;
        }
        body(b * 32 + 4 * k, columns);
      });
    });
  });
}

template <class Format>
inline void decode_columns(const std::byte* panel, const ProductArgs& a, std::size_t first, std::size_t count,
                           float* out) noexcept {
  each_four_columns<Format>(panel, a, first, count, [&](std::size_t column, const Floats(&values)[4]) {
    for (std::size_t j = 0; j < 4 && column + j < count; ++j) store_floats(values[j], out + (column + j) * kLanes);
  });
}

// ---- Few tokens: weights are decoded in registers

template <class Format, int kTokens>
inline void exact_tile(const ProductArgs& a, const std::byte* panel, std::size_t first_row,
                       std::size_t token) noexcept {
  using Levels = FloatLevels<Format>;
  constexpr int kGroups = 32 / Format::Scales::kGroup;
  constexpr int kGroupSteps = kSteps / kGroups;
  const typename Format::Scales scales(a.scale_group);
  Floats sums[kTokens];
  for (int t = 0; t < kTokens; ++t) sums[t] = splat(0.0f);
  PanelWalk<Format> walk(panel + kHeaderBytes<Format>, scales, Ahead::of_heavy(a));
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
            part = fused(columns[j], splat(x[4 * k + j]), part);
          }
        }
      }
      GroupScale group = scales.read(super, block, of_super, g);
      if constexpr (Levels::kUnit != 1.0f) group.scale = group.scale * splat(Levels::kUnit);
      for (int t = 0; t < kTokens; ++t) {
        const Floats part = (parts[t][0] + parts[t][1]) + (parts[t][2] + parts[t][3]);
        sums[t] = fused(group.scale, part, sums[t]);
        if constexpr (Format::Scales::kHasOffset) {
          const std::size_t at = (token + static_cast<std::size_t>(t)) * a.in.stride + b * 32;
          sums[t] = fused(group.offset, group_sum<kGroups>(a, at, g), sums[t]);
        }
      }
    }
  });
  store_tile(sums, row_scales<Format>(panel), a, first_row, token);
}

template <class Format>
void exact_matmul(const ProductArgs& a) noexcept {
  const std::size_t bytes = panel_bytes<Format>(a.cols, a.scale_group);
  if (a.in.batch > kDirectTokens || a.many) {
    float_matmul(a, bytes, [&](const std::byte* panel, std::size_t first, std::size_t count, float* out) {
      decode_columns<Format>(panel, a, first, count, out);
    });
    return;
  }
  for (std::size_t p = a.first_panel; p < a.last_panel; ++p) {
    each_tile<kDirectTile>(a.in.batch, [&](auto tokens, std::size_t token) {
      exact_tile<Format, decltype(tokens)::value>(a, a.run + p * bytes, p * kLanes, token);
    });
  }
}

template <class Format>
std::size_t exact_scratch_bytes(std::size_t cols, std::size_t batch) noexcept {
  if constexpr (kUsesTables<Format>) {
    if (batch == 1) return tables_bytes<Format>(cols);
  }
  return float_scratch_bytes(cols, batch);
}

template <class Format>
void exact_matvec(const ProductArgs& a) noexcept {
  if constexpr (kUsesTables<Format>) {
    tables_matvec<Format>(a);
  } else {
    const std::size_t bytes = panel_bytes<Format>(a.cols, a.scale_group);
    for (std::size_t p = a.first_panel; p < a.last_panel; ++p) {
      exact_tile<Format, 1>(a, a.run + p * bytes, p * kLanes, 0);
    }
  }
}
