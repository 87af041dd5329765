// Products of many tokens by tiles: 16 tokens by 16 rows (one panel), 32 columns at a time. Weights of all formats are
// decoded to bfloat16, so that neither scales nor zeros are left in the sums: those stay in tiles while columns go by.
//
// Four tiles hold sums, of two groups of tokens and two panels; two hold tokens and two weights, and each of those is
// used twice. Of a stripe of columns, the weights of a group of panels lie in the second-level cache, and so do sums;
// tokens go by once for the whole group, 32 at a time, and stay in the first-level cache while all panels go by, which
// are read past it. Tokens come from further away each time, so the next 32 are asked for while these are multiplied.
//
// Fast products round activations and weights to bfloat16. Exact ones take them as sums of several such terms, largest
// first, with a tile for each, and multiply every term with every other but those whose product float32 would lose.

inline constexpr std::size_t kTileValues = kTileBytes / sizeof(float);
static_assert(kTileTokens == kTileRows && kTileColumns * sizeof(std::uint16_t) == kTileRowBytes);
inline constexpr std::size_t kTokenTile = kTileTokens * kTileColumns;  // values
inline constexpr std::size_t kBlockTokens = 2 * kTileTokens;
/// Sums of 32 tokens and a group of panels; 512 KiB of 512 tokens.
inline constexpr std::size_t kBlockValues = 2 * kTilePanels * kTileValues;

inline std::size_t steps_of(std::size_t cols) noexcept { return (cols + kTileColumns - 1) / kTileColumns; }

/// Terms of an activation and of a weight.
template <int kTokens, int kWeights>
struct Terms {
  static constexpr int kOfTokens = kTokens, kOfWeights = kWeights;
  /// So many columns that 32 tokens take 32 KiB.
  static constexpr std::size_t kStripeColumns = 512 / kTokens / kTileColumns * kTileColumns;

  /// Blocks of 32 tokens whose sums have to be kept from one stripe of columns to the next. (With those skipped in
  /// front of the first they may be one more.)
  static std::size_t kept_blocks(std::size_t cols, std::size_t batch) noexcept {
    return cols <= kStripeColumns ? 1 : (batch + kTileTokens - 1 + kBlockTokens - 1) / kBlockTokens;
  }
  /// The memory of a thread: first the weights of a stripe, then sums.
  static std::size_t stripe_bytes(std::size_t cols) noexcept {
    return kTilePanels * steps_of(cols < kStripeColumns ? cols : kStripeColumns) * kWeights * kTileBytes;
  }
  static std::size_t scratch_bytes(std::size_t cols, std::size_t batch) noexcept {
    return stripe_bytes(cols) + kept_blocks(cols, batch) * kBlockValues * sizeof(float);
  }

  static void tile_token(const TileTokenArgs& a) noexcept {
    std::uint16_t* to = a.tiles;
    const auto put = [&](const float* x) {
      const Bfloat16Terms<kTokens> first(load_floats(x)), second(load_floats(x + kLanes));
      for (int i = 0; i < kTokens; ++i, to += kTokenTile) store_rounded(first.terms[i], second.terms[i], to);
    };
    std::size_t c = 0;
    for (; c + kTileColumns <= a.cols; c += kTileColumns) put(a.x + c);
    if (c == a.cols) return;
    alignas(64) float last[kTileColumns] = {};
    __builtin_memcpy(last, a.x + c, (a.cols - c) * sizeof(float));
    put(last);
  }

  /// Two columns of a panel, from the place of their first term on.
  static void store_weights(Floats even, Floats odd, std::byte* to) noexcept {
    const Bfloat16Terms<kWeights> evens(even), odds(odd);
    for (int i = 0; i < kWeights; ++i, to += kTileBytes) store_pairs(evens.terms[i], odds.terms[i], to);
  }
  /// That place among the tiles of a panel.
  static std::size_t weights_at(std::size_t column) noexcept {
    return column / kTileColumns * kWeights * kTileBytes + column % kTileColumns / 2 * kTileRowBytes;
  }
};

/// Some columns of some panels as tiles of weights.
struct Stripe {
  std::size_t first_panel, panels;
  std::size_t first_column, columns;
  std::byte* weights;  // [panels][steps][terms] tiles
  std::size_t panel_bytes;

  std::size_t steps() const noexcept { return steps_of(columns); }
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
  std::size_t next_tokens;  // from `tokens` to what comes next: in every step `next_rows` of the same tiles there
  std::size_t next_rows;
};

/// Tiles 0 to 3 are sums, 4 and 5 tokens, 6 and 7 weights.
template <class Terms, int kGroups, int kPanels>
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
    unrolled<Terms::kOfWeights>([&](auto w) {
      load_tile_past<6>(weights);
      unrolled<Terms::kOfTokens - w>([&](auto t) {
        load_tile<4>(tokens + t * kTokenTile);
        multiply_tiles<0, 4, 6>();
        if constexpr (kPanels == 2) {
          if constexpr (t == 0) load_tile_past<7>(weights + a.panels_apart);
          multiply_tiles<1, 4, 7>();
        }
        if constexpr (kGroups == 2) {
          load_tile<5>(tokens + a.groups_apart + t * kTokenTile);
          multiply_tiles<2, 5, 6>();
          if constexpr (kPanels == 2) multiply_tiles<3, 5, 7>();
        }
      });
      weights += kTileBytes;
    });
    for (std::size_t r = 0; r < a.next_rows; ++r) {
      for (int t = 0; t < Terms::kOfTokens; ++t) {
        const std::uint16_t* const next = tokens + a.next_tokens + t * kTokenTile + r * kTileColumns;
        _mm_prefetch(next, _MM_HINT_T1);
        _mm_prefetch(next + a.groups_apart, _MM_HINT_T1);
      }
    }
    for (int i = 0; i < 4 * Terms::kOfTokens; ++i, next_sums += kLanes) _mm_prefetch(next_sums, _MM_HINT_T0);
    tokens += Terms::kOfTokens * kTokenTile;
  }
  each_sum([&](auto i) { store_tile_at<i>(a.sums + i * kTileValues); });
}

/// Up to 32 tokens times a stripe: sums[panels / 2][groups of tokens][panels 2] tiles. `block` counts from the tile
/// that has the first token.
template <class Terms>
inline void multiply_tokens(const Activations& in, const Stripe& stripe, std::size_t block, float* sums) noexcept {
  const std::size_t left = in.skipped + in.batch - block * kBlockTokens;
  const bool is_wide = left > kTileTokens;
  const std::size_t pairs = (stripe.panels + 1) / 2;
  const std::size_t next_rows = left > kBlockTokens ? (kTileRows + pairs - 1) / pairs : 0;
  const std::uint16_t* const tokens =
      in.tiles + 2 * block * in.tiles_apart + stripe.first_column * kTileTokens * Terms::kOfTokens;
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    const bool is_pair = 2 * pair + 1 < stripe.panels;
    const auto multiply = is_wide ? (is_pair ? multiply_tiles_of<Terms, 2, 2> : multiply_tiles_of<Terms, 2, 1>)
                                  : (is_pair ? multiply_tiles_of<Terms, 1, 2> : multiply_tiles_of<Terms, 1, 1>);
    multiply({.tokens = tokens,
              .groups_apart = in.tiles_apart,
              .weights = stripe.weights + 2 * pair * stripe.panel_bytes,
              .panels_apart = stripe.panel_bytes,
              .steps = stripe.steps(),
              .sums = sums + 4 * pair * kTileValues,
              .is_first = stripe.first_column == 0,
              .next_tokens = 2 * in.tiles_apart + pair * next_rows * kTileColumns,
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
template <class Terms, class Decode>
inline void tile_matmul(const ProductArgs& a, std::size_t bytes, Decode decode) noexcept {
  const TileRegisters registers;
  float* const all_sums = reinterpret_cast<float*>(a.scratch + Terms::stripe_bytes(a.cols));
  const std::size_t blocks = (a.in.skipped + a.in.batch + kBlockTokens - 1) / kBlockTokens;
  for (std::size_t panel = a.first_panel; panel < a.last_panel; panel += kTilePanels) {
    const std::size_t panels = a.last_panel - panel < kTilePanels ? a.last_panel - panel : kTilePanels;
    for (std::size_t column = 0; column < a.cols; column += Terms::kStripeColumns) {
      const std::size_t left = a.cols - column;
      const std::size_t columns = left < Terms::kStripeColumns ? left : Terms::kStripeColumns;
      const Stripe stripe{panel,   panels,    column,
                          columns, a.scratch, steps_of(columns) * Terms::kOfWeights * kTileBytes};
      for (std::size_t p = 0; p < panels; ++p) {
        decode(a.run + (panel + p) * bytes, column, columns, stripe.weights + p * stripe.panel_bytes);
      }
      for (std::size_t block = 0; block < blocks; ++block) {
        float* sums = all_sums + (a.cols <= Terms::kStripeColumns ? 0 : block * kBlockValues);
        multiply_tokens<Terms>(a.in, stripe, block, sums);
        if (column + columns == a.cols) store_tokens(a, stripe, block, sums);
      }
    }
  }
}

template <class T, class Terms>
void panels_by_tiles(const ProductArgs& a) noexcept {
  static_assert(Terms::kStripeColumns % 256 == 0);
  PanelFunctions<T>::with_layout(a.scale_group, [&]<class Layout>(std::type_identity<Layout>) {
    tile_matmul<Terms>(a, panel_bytes<Layout>(a.cols, a.scale_group),
                       [&](const std::byte* panel, std::size_t first, std::size_t count, std::byte* tiles) {
                         const auto store = [&](std::size_t column, const Floats(&values)[4]) {
                           std::byte* const to = tiles + Terms::weights_at(column);
                           Terms::store_weights(values[0], values[1], to);
                           Terms::store_weights(values[2], values[3], to + kTileRowBytes);
                         };
                         each_four_columns<Layout>(panel, a, first, count, store);
                       });
  });
}

/// Columns [first, first + count) of a panel as tiles, with zeros after the last.
template <class T, class Terms>
inline void tile_columns(const ProductArgs& a, const std::byte* panel, std::size_t first, std::size_t count,
                         std::byte* tiles) noexcept {
  using Form = ColumnPanels<T>;
  const std::size_t end = steps_of(count) * kTileColumns;
  if constexpr (std::is_same_v<T, BFloat16>) {  // they are there already, column by column, and have no scales
    static_assert(Terms::kOfWeights == 1 && 2 * Form::kColumnBytes == kTileRowBytes);
    const std::byte* const columns = panel + Form::kScaleBytes + first * Form::kColumnBytes;
    for (std::size_t c = 0; c < end; c += 2) {
      const __mmask16 there = c + 1 < count ? 0xFFFF : c < count ? 0x00FF : 0;
      const __m512i both = _mm512_maskz_loadu_epi32(there, columns + c * Form::kColumnBytes);
      store_pairs(both, tiles + Terms::weights_at(c));
    }
    return;
  }
  alignas(64) float decoded[kTileColumns * kLanes];
  for (std::size_t c = 0; c < end; c += kTileColumns) {
    const std::size_t some = count - c < kTileColumns ? count - c : kTileColumns;
    Form::decode(panel, a.scale_group, first + c, some, decoded);
    for (std::size_t i = some * kLanes; i < kTileColumns * kLanes; ++i) decoded[i] = 0;
    for (std::size_t i = 0; i < kTileColumns; i += 2) {
      Terms::store_weights(load_floats(decoded + i * kLanes), load_floats(decoded + (i + 1) * kLanes),
                           tiles + Terms::weights_at(c + i));
    }
  }
}

template <class T, class Terms>
void columns_by_tiles(const ProductArgs& a) noexcept {
  tile_matmul<Terms>(a, ColumnPanels<T>::panel_bytes(a.cols, a.scale_group),
                     [&](const std::byte* panel, std::size_t first, std::size_t count, std::byte* tiles) {
                       tile_columns<T, Terms>(a, panel, first, count, tiles);
                     });
}
