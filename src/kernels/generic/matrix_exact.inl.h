// Products with float32 activations. Of many tokens, two panels share each broadcast activation, so that loads stay
// behind multiplications: 24 sums of 32 registers (2 × 12), or 12 of 16 (2 × 6).

inline constexpr int kExactTile = kRegisters == 32 ? 8 : 4;
inline constexpr int kFloatTile = kRegisters == 32 ? 12 : 6;
/// Columns that are decoded at a time: two panels of them take 64 KiB with 16 lanes.
inline constexpr std::size_t kChunkColumns = 512;

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
