// Attention of many queries by tiles of bfloat16. Scores are computed the other way round, keys by queries: then lanes
// are queries, and what softmax has to know of each (its largest score, the sum of its weights) is one vector for 16.
//
// Up to kGroupQueries queries go through the cache together, kTileKeys keys at a time: round the keys to tiles, score
// them, turn scores into weights, round the values to tiles, add them up. Queries are rounded in two parts, which
// together have 16 bits: an error in a score is one in a power of e.

inline constexpr std::size_t kQueryTiles = 4;  // that share each tile of keys and values
inline constexpr std::size_t kGroupQueries = kQueryTiles * kTileRows;
inline constexpr std::size_t kTileValues = kTileBytes / sizeof(float);
inline constexpr std::size_t kStepValues = kTileRowBytes / 2;  // of bfloat16
static_assert(kTileKeys == 2 * kTileRows && kLanes == kTileRows);

/// dwords[i][j] = rows[j][i] for 16 × 16 of them, rows one line apart.
inline void transpose_tile(const std::byte* rows, std::byte* out) noexcept {
  const float* lines[kTileRows];
  for (std::size_t i = 0; i < kTileRows; ++i) lines[i] = reinterpret_cast<const float*>(rows + i * kTileRowBytes);
  Floats columns[kTileRows];
  transpose(lines, 0, columns);
  for (std::size_t i = 0; i < kTileRows; ++i) {
    store_floats(columns[i], reinterpret_cast<float*>(out + i * kTileRowBytes));
  }
}

/// 16 queries, lanes of every vector.
struct QueryLanes {
  std::byte* high;  // [steps] tiles: pairs of values by queries
  std::byte* low;   // what rounding left of them, likewise; right after the former
  float* y;         // [2 · steps] tiles: queries by 16 values, not yet divided by the sums of weights
  Floats largest, sum;
  Ints first, end;  // keys that each sees
};

/// One group of queries on its way through the keys.
struct TileAttention {
  const AttentionArgs& args;
  std::size_t first, count;  // queries, count <= kGroupQueries
  std::size_t steps;         // of 32 values
  QueryLanes lanes[kQueryTiles];
  std::byte* keys;     // [2 groups of 16 keys][steps] tiles: keys by values
  std::byte* values;   // [2 · steps] tiles: pairs of keys by 16 values
  std::byte* weights;  // tiles: one of queries by keys, and one on the way to it
  float* scores;       // two tiles: keys by queries
  float* rows;         // two rows of the cache in float32
  std::size_t first_key = ~std::size_t{0}, end_key = 0;

  TileAttention(const AttentionArgs& a, std::size_t from, std::size_t some) noexcept
      : args(a), first(from), count(some), steps((a.head_values + kStepValues - 1) / kStepValues) {
    std::byte* at = reinterpret_cast<std::byte*>(a.scratch);
    const auto take = [&](std::size_t tiles) {
      std::byte* const taken = at;
      at += tiles * kTileBytes;
      return taken;
    };
    for (QueryLanes& tile : lanes) {
      tile.high = take(2 * steps);
      tile.low = tile.high + steps * kTileBytes;
      tile.y = reinterpret_cast<float*>(take(2 * steps));
    }
    keys = take(2 * steps);
    values = take(2 * steps);
    weights = take(2);
    scores = reinterpret_cast<float*>(take(2));
    rows = reinterpret_cast<float*>(at);
  }

  std::size_t tiles() const noexcept { return (count + kTileRows - 1) / kTileRows; }
  std::size_t offset(std::size_t n) const noexcept {
    return (first + n) / args.group * args.token_stride + (first + n) % args.group * args.head_values;
  }
  /// Values of a row, rounded up to whole steps; zeros at the end.
  std::size_t width() const noexcept { return steps * kStepValues; }

  /// Zeros from a whole vector on to the end of a row.
  void clear(float* row, std::size_t begin) const noexcept {
    for (std::size_t i = begin; i < width(); i += kLanes) store_floats(splat(0.0f), row + i);
  }

  /// A query in two parts, as row n of tiles that are transposed when all are there.
  void load_query(const float* from, std::size_t n, QueryLanes& of) const noexcept {
    clear(rows, 0);
    for_each_vector(args.head_values,
                    [&](std::size_t i, auto part) { store_floats(part.load(from + i) * splat(args.scale), rows + i); });
    for (std::size_t s = 0; s < steps; ++s) {
      const Bfloat16Terms<2> a(load_floats(rows + s * kStepValues)), b(load_floats(rows + s * kStepValues + kLanes));
      const std::size_t place = s * kTileBytes + n * kTileRowBytes;
      store_rounded(a.terms[0], b.terms[0], reinterpret_cast<std::uint16_t*>(of.high + place));
      store_rounded(a.terms[1], b.terms[1], reinterpret_cast<std::uint16_t*>(of.low + place));
    }
  }

  void load_queries() noexcept {
    for (std::size_t tile = 0; tile < tiles(); ++tile) {
      QueryLanes& of = lanes[tile];
      std::int32_t from[kLanes] = {}, until[kLanes] = {};  // lanes without a query see no keys
      float sinks[kLanes] = {};
      for (std::size_t i = 0; i < 2 * steps * kTileBytes; i += kTileRowBytes) {
        store_floats(splat(0.0f), reinterpret_cast<float*>(of.high + i));
      }
      for (std::size_t n = 0; n < kTileRows && tile * kTileRows + n < count; ++n) {
        const std::size_t query = tile * kTileRows + n;
        load_query(args.q + offset(query), n, of);
        const KeyRange range = args.ranges[(first + query) / args.group];
        if (args.sinks != nullptr) sinks[n] = args.sinks[(first + query) % args.group];
        from[n] = static_cast<std::int32_t>(range.first);
        until[n] = static_cast<std::int32_t>(range.first + range.count);
        if (range.count == 0) continue;
        first_key = range.first < first_key ? range.first : first_key;
        end_key = range.first + range.count > end_key ? range.first + range.count : end_key;
      }
      for (std::size_t i = 0; i < 2 * steps * kTileBytes; i += kTileBytes) transpose_tile(of.high + i, of.high + i);
      for (std::size_t i = 0; i < 2 * steps * kTileValues; i += kLanes) store_floats(splat(0.0f), of.y + i);
      // A sink is like a key that has been seen, whose value is 0.
      of.largest = args.sinks == nullptr ? splat(-kInfinity) : load_floats(sinks);
      of.sum = splat(args.sinks == nullptr ? 0.0f : 1.0f);
      of.first = load_32(reinterpret_cast<const std::byte*>(from));
      of.end = load_32(reinterpret_cast<const std::byte*>(until));
    }
  }

  /// Row `key` of a cache in float32, zeros where nobody may look.
  void decode(const std::byte* cache, std::size_t key, float* to) const noexcept {
    if (key < first_key || key >= end_key) return clear(to, 0);
    clear(to, args.head_values / kLanes * kLanes);
    const std::byte* from = row_at(args, cache, key);
    switch (args.type) {
      case CacheType::f32: return decode_row<CacheType::f32>(args, from, to);
      case CacheType::f16: return decode_row<CacheType::f16>(args, from, to);
      case CacheType::q8_0: return decode_row<CacheType::q8_0>(args, from, to);
    }
  }

  void load_keys(std::size_t key) const noexcept {
    for (std::size_t k = 0; k < kTileKeys; ++k) {
      decode(args.keys, key + k, rows);
      for (std::size_t s = 0; s < steps; ++s) {
        std::byte* to = keys + (k / kTileRows * steps + s) * kTileBytes + k % kTileRows * kTileRowBytes;
        const float* from = rows + s * kStepValues;
        store_rounded(load_floats(from), load_floats(from + kLanes), reinterpret_cast<std::uint16_t*>(to));
      }
    }
  }

  void load_values(std::size_t key) const noexcept {
    float* const second = rows + width();
    for (std::size_t k = 0; k < kTileKeys; k += 2) {
      decode(args.values, key + k, rows);
      decode(args.values, key + k + 1, second);
      for (std::size_t i = 0; i < 2 * steps; ++i) {
        store_pairs(load_floats(rows + i * kLanes), load_floats(second + i * kLanes),
                    values + i * kTileBytes + k / 2 * kTileRowBytes);
      }
    }
  }

  void score(const QueryLanes& of) const noexcept {
    zero_tile<0>();
    zero_tile<1>();
    for (std::size_t s = 0; s < steps; ++s) {
      load_tile<2>(keys + s * kTileBytes);
      load_tile<3>(keys + (steps + s) * kTileBytes);
      load_tile<4>(of.high + s * kTileBytes);
      load_tile<5>(of.low + s * kTileBytes);
      multiply_tiles<0, 2, 4>();
      multiply_tiles<1, 3, 4>();
      multiply_tiles<0, 2, 5>();
      multiply_tiles<1, 3, 5>();
    }
    store_tile_at<0>(scores);
    store_tile_at<1>(scores + kTileValues);
  }

  /// Makes weights of the scores of the keys from `key` on; what queries had so far shrinks if they have a larger one.
  void weigh(QueryLanes& of, std::size_t key) const noexcept {
    const Ints begin = splat_int(static_cast<std::int32_t>(key));
    const bool is_inside = !any(begin < of.first) && !any(of.end < begin + splat_int(kTileKeys));
    Floats largest = of.largest;
    for (std::size_t k = 0; k < kTileKeys; ++k) {
      Floats score = load_floats(scores + k * kLanes);
      if (args.cap > 0) score = soft_cap(score, args.cap);
      if (!is_inside) {
        const Ints place = begin + splat_int(static_cast<std::int32_t>(k));
        score = select(either(place < of.first, of.end < place + splat_int(1)), splat(-kInfinity), score);
      }
      if (args.cap > 0 || !is_inside) store_floats(score, scores + k * kLanes);
      largest = max_of(largest, score);
    }
    // Without any key so far there is nothing to subtract: -inf from -inf would be no number.
    const Floats base = select(largest == splat(-kInfinity), splat(0.0f), largest);
    const Floats shrink = select(largest == of.largest, splat(1.0f), exp_of(of.largest - base));
    Floats sum = splat(0.0f);
    for (std::size_t k = 0; k < kTileKeys; k += 2) {
      const Floats even = exp_of(load_floats(scores + k * kLanes) - base);
      const Floats odd = exp_of(load_floats(scores + (k + 1) * kLanes) - base);
      sum = sum + (even + odd);
      store_pairs(even, odd, weights + kTileBytes + k / 2 * kTileRowBytes);
    }
    transpose_tile(weights + kTileBytes, weights);
    if (any(of.largest < largest)) shrink_sums(of, shrink);
    of.largest = largest;
    of.sum = of.sum * shrink + sum;
  }

  void shrink_sums(QueryLanes& of, Floats shrink) const noexcept {
    float factors[kLanes];
    store_floats(shrink, factors);
    for (std::size_t i = 0; i < 2 * steps; ++i) {
      for (std::size_t n = 0; n < kTileRows; ++n) {
        float* y = of.y + i * kTileValues + n * kLanes;
        store_floats(load_floats(y) * splat(factors[n]), y);
      }
    }
  }

  void add(QueryLanes& of) const noexcept {
    load_tile<6>(weights);
    for (std::size_t i = 0; i < 2 * steps; i += 2) {
      float* y = of.y + i * kTileValues;
      load_tile<0>(y);
      load_tile<1>(y + kTileValues);
      load_tile<2>(values + i * kTileBytes);
      load_tile<3>(values + (i + 1) * kTileBytes);
      multiply_tiles<0, 6, 2>();
      multiply_tiles<1, 6, 3>();
      store_tile_at<0>(y);
      store_tile_at<1>(y + kTileValues);
    }
  }

  void store() const noexcept {
    for (std::size_t n = 0; n < count; ++n) {
      const QueryLanes& of = lanes[n / kTileRows];
      float sums[kLanes];
      store_floats(of.sum, sums);
      const float sum = sums[n % kTileRows];
      const Floats factor = splat(sum == 0 ? 0.0f : 1 / sum);
      float* to = args.y + offset(n);
      for_each_vector(args.head_values, [&](std::size_t i, auto part) {
        part.store(load_floats(of.y + i / kLanes * kTileValues + n % kTileRows * kLanes) * factor, to + i);
      });
    }
  }

  void run() noexcept {
    load_queries();
    for (std::size_t key = first_key / kTileKeys * kTileKeys; key < end_key; key += kTileKeys) {
      load_keys(key);
      load_values(key);
      for (std::size_t tile = 0; tile < tiles(); ++tile) {
        score(lanes[tile]);
        weigh(lanes[tile], key);
        add(lanes[tile]);
      }
    }
    store();
  }
};
