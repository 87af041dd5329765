// Products of many tokens by tiles: 16 tokens by 16 rows (one panel), 32 columns at a time. Weights of all formats are
// decoded to bfloat16, so that neither scales nor zeros are left in the sums: those stay in tiles while columns go by.
//
// Four tiles hold sums, of two groups of tokens and two panels; two hold tokens and two weights, and each of those is
// used twice. Of a stripe of columns, the weights of a group of panels lie in the second-level cache, and so do sums;
// tokens go by once for the whole group, 32 at a time, and stay in the first-level cache while all panels go by, which
// are read past it. Tokens come from further away each time, so the next 32 are asked for while these are multiplied.

inline constexpr std::size_t kStripeColumns = 512;        // 32 KiB of 32 tokens
inline constexpr std::size_t kGroupPanels = kTilePanels;  // 256 KiB of a stripe, and 512 KiB of sums of 512 tokens
inline constexpr std::size_t kTileValues = kTileBytes / sizeof(float);
/// Sums of 32 tokens and a group of panels.
inline constexpr std::size_t kBlockValues = 2 * kGroupPanels * kTileValues;
static_assert(kTileTokens == kTileRows && kTileColumns * sizeof(std::uint16_t) == kTileRowBytes);
inline constexpr std::size_t kBlockTokens = 2 * kTileTokens;

inline std::size_t steps_of(std::size_t cols) noexcept { return (cols + kTileColumns - 1) / kTileColumns; }

/// Blocks of 32 tokens whose sums have to be kept from one stripe of columns to the next. (With those skipped in front
/// of the first they may be one more.)
inline std::size_t kept_blocks(std::size_t cols, std::size_t batch) noexcept {
  return cols <= kStripeColumns ? 1 : (batch + kTileTokens - 1 + kBlockTokens - 1) / kBlockTokens;
}

/// The memory of a thread: first the weights of a stripe, then sums.
inline std::size_t stripe_bytes(std::size_t cols) noexcept {
  return kGroupPanels * steps_of(cols < kStripeColumns ? cols : kStripeColumns) * kTileBytes;
}
inline std::size_t tile_scratch_bytes(std::size_t cols, std::size_t batch) noexcept {
  return stripe_bytes(cols) + kept_blocks(cols, batch) * kBlockValues * sizeof(float);
}

inline void tile_token(const TileTokenArgs& a) noexcept {
  std::uint16_t* to = a.tiles;
  std::size_t c = 0;
  for (; c + kTileColumns <= a.cols; c += kTileColumns, to += kTileTokens * kTileColumns) {
    store_rounded(load_floats(a.x + c), load_floats(a.x + c + kLanes), to);
  }
  if (c == a.cols) return;
  alignas(64) float last[kTileColumns] = {};
  __builtin_memcpy(last, a.x + c, (a.cols - c) * sizeof(float));
  store_rounded(load_floats(last), load_floats(last + kLanes), to);
}

/// Some columns of some panels as tiles of weights.
struct Stripe {
  std::size_t first_panel, panels;
  std::size_t first_column, columns;
  std::byte* weights;  // [panels][steps] tiles

  std::size_t steps() const noexcept { return steps_of(columns); }
  std::size_t panel_bytes() const noexcept { return steps() * kTileBytes; }
};

/// sums += tokens · weights over some steps, and what is asked for meanwhile.
struct TileProduct {
  const std::uint16_t* tokens;
  std::size_t groups_apart;
  const std::byte* weights;
  std::size_t panels_apart;
  std::size_t steps;
  float* sums;  // [groups][panels] tiles; those of the product that comes next follow
  bool is_first;
  std::ptrdiff_t next_tokens;  // from `tokens` to what comes next: in every step `next_rows` of the same tile there
  std::size_t next_rows;
};

/// Tiles 0 to 3 are sums, 4 and 5 tokens, 6 and 7 weights.
template <int kGroups, int kPanels>
inline void multiply_tiles_of(const TileProduct& a) noexcept {
  const auto each_sum = [&](auto body) {
    body(std::integral_constant<int, 0>{});
    if constexpr (kPanels == 2) body(std::integral_constant<int, 1>{});
    if constexpr (kGroups == 2) body(std::integral_constant<int, 2>{});
    if constexpr (kGroups == 2 && kPanels == 2) body(std::integral_constant<int, 3>{});
  };
  each_sum([&](auto i) {
    if (a.is_first) {
      zero_tile<i>();
    } else {
      load_tile<i>(a.sums + i * kTileValues);
    }
  });
  const std::uint16_t* tokens = a.tokens;
  const std::byte* weights = a.weights;
  const float* next_sums = a.sums + 4 * kTileValues;
  for (std::size_t s = 0; s < a.steps; ++s) {
    load_tile_past<6>(weights);
    load_tile<4>(tokens);
    multiply_tiles<0, 4, 6>();
    if constexpr (kPanels == 2) {
      load_tile_past<7>(weights + a.panels_apart);
      multiply_tiles<1, 4, 7>();
    }
    if constexpr (kGroups == 2) {
      load_tile<5>(tokens + a.groups_apart);
      multiply_tiles<2, 5, 6>();
      if constexpr (kPanels == 2) multiply_tiles<3, 5, 7>();
    }
    for (std::size_t r = 0; r < a.next_rows; ++r) {
      const std::uint16_t* const next = tokens + a.next_tokens + r * kTileColumns;
      _mm_prefetch(next, _MM_HINT_T1);
      _mm_prefetch(next + a.groups_apart, _MM_HINT_T1);
    }
    for (int line = 0; line < 4; ++line, next_sums += kLanes) _mm_prefetch(next_sums, _MM_HINT_T0);
    tokens += kTileTokens * kTileColumns;
    weights += kTileBytes;
  }
  each_sum([&](auto i) { store_tile_at<i>(a.sums + i * kTileValues); });
}

/// Up to 32 tokens times a stripe: sums[panels / 2][groups of tokens][panels 2] tiles. `block` counts from the tile
/// that has the first token.
inline void multiply_tokens(const Activations& in, const Stripe& stripe, std::size_t block, float* sums) noexcept {
  const std::size_t left = in.skipped + in.batch - block * kBlockTokens;
  const bool is_wide = left > kTileTokens;
  const std::size_t pairs = (stripe.panels + 1) / 2;
  const std::size_t next_rows = left > kBlockTokens ? (kTileRows + pairs - 1) / pairs : 0;
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    const bool is_pair = 2 * pair + 1 < stripe.panels;
    const auto multiply = is_wide ? (is_pair ? multiply_tiles_of<2, 2> : multiply_tiles_of<2, 1>)
                                  : (is_pair ? multiply_tiles_of<1, 2> : multiply_tiles_of<1, 1>);
    multiply({.tokens = in.tiles + 2 * block * in.tiles_apart + stripe.first_column * kTileTokens,
              .groups_apart = in.tiles_apart,
              .weights = stripe.weights + 2 * pair * stripe.panel_bytes(),
              .panels_apart = stripe.panel_bytes(),
              .steps = stripe.steps(),
              .sums = sums + 4 * pair * kTileValues,
              .is_first = stripe.first_column == 0,
              .next_tokens = static_cast<std::ptrdiff_t>(2 * in.tiles_apart + pair * next_rows * kTileColumns),
              .next_rows = next_rows});
  }
}

/// The finished sums of those tokens.
inline void store_tokens(const ProductArgs& a, const Stripe& stripe, std::size_t block, const float* sums) noexcept {
  for (std::size_t t = 0; t < kBlockTokens; ++t) {
    const std::size_t token = block * kBlockTokens + t - a.in.skipped;  // wraps in front of the first
    if (token >= a.in.batch) continue;
    for (std::size_t p = 0; p < stripe.panels; ++p) {
      const std::size_t tile = p / 2 * 4 + t / kTileTokens * 2 + p % 2;
      const Floats sum = load_floats(sums + tile * kTileValues + t % kTileTokens * kLanes);
      store_rows(sum, a, (stripe.first_panel + p) * kLanes, token);
    }
  }
}

/// The product of any format that `decode(panel, first column, count, tiles)` turns into tiles.
template <class Decode>
inline void tile_matmul(const ProductArgs& a, std::size_t bytes, Decode decode) noexcept {
  const TileRegisters registers;
  float* const all_sums = reinterpret_cast<float*>(a.scratch + stripe_bytes(a.cols));
  const std::size_t blocks = (a.in.skipped + a.in.batch + kBlockTokens - 1) / kBlockTokens;
  for (std::size_t panel = a.first_panel; panel < a.last_panel; panel += kGroupPanels) {
    const std::size_t panels = a.last_panel - panel < kGroupPanels ? a.last_panel - panel : kGroupPanels;
    for (std::size_t column = 0; column < a.cols; column += kStripeColumns) {
      const std::size_t columns = a.cols - column < kStripeColumns ? a.cols - column : kStripeColumns;
      const Stripe stripe{panel, panels, column, columns, a.scratch};
      for (std::size_t p = 0; p < panels; ++p) {
        decode(a.run + (panel + p) * bytes, column, columns, stripe.weights + p * stripe.panel_bytes());
      }
      for (std::size_t block = 0; block < blocks; ++block) {
        float* sums = all_sums + (a.cols <= kStripeColumns ? 0 : block * kBlockValues);
        multiply_tokens(a.in, stripe, block, sums);
        if (column + columns == a.cols) store_tokens(a, stripe, block, sums);
      }
    }
  }
}

template <class Format>
void planes_by_tiles(const ProductArgs& a) noexcept {
  tile_matmul(a, panel_bytes<Format>(a.cols, a.scale_group),
              [&](const std::byte* panel, std::size_t first, std::size_t count, std::byte* tiles) {
                each_four_columns<Format>(panel, a, first, count, [&](std::size_t column, const Floats(&values)[4]) {
                  store_pairs(values[0], values[1], tiles + column / 2 * kTileRowBytes);
                  store_pairs(values[2], values[3], tiles + (column / 2 + 1) * kTileRowBytes);
                });
              });
}

template <class T>
void columns_by_tiles(const ProductArgs& a) noexcept {
  using Form = ColumnForm<T>;
  tile_matmul(a, Form::panel_bytes(a.cols, a.scale_group),
              [&](const std::byte* panel, std::size_t first, std::size_t count, std::byte* tiles) {
                constexpr std::size_t kSome = 64;
                alignas(64) float decoded[kSome * kLanes];
                for (std::size_t c = 0; c < count; c += kSome) {
                  const std::size_t some = count - c < kSome ? count - c : kSome;
                  Form::decode(panel, a.scale_group, first + c, some, decoded);
                  for (std::size_t i = some * kLanes; i < steps_of(some) * kTileColumns * kLanes; ++i) decoded[i] = 0;
                  for (std::size_t i = 0; i < steps_of(some) * kTileColumns; i += 2, tiles += kTileRowBytes) {
                    store_pairs(load_floats(decoded + i * kLanes), load_floats(decoded + (i + 1) * kLanes), tiles);
                  }
                }
              });
}
