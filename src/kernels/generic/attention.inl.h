// Attention in one pass over keys and values, over generic/math.inl.h and attention_cache.inl.h. Compiled inside a
// kernel's namespace, so it includes nothing itself.
//
// Up to kTileQueries queries go through the cache together, kTileKeys keys at a time: decode the keys to float32, score
// them against all queries, turn scores into weights relative to the largest score so far, decode the values, add them
// up. When a larger score comes, the earlier sums shrink by e^(old - new). Nothing grows with the number of keys, and
// each row of the cache is decoded once for all queries. Tiles begin at multiples of kTileKeys and each sum has one
// fixed order, so that a query's result does not depend on its neighbours.

/// Lines of the cache that are wanted soon: the values while keys are scored, the next keys while values are added. By
/// itself the processor stops prefetching while it computes. They are asked for a few at a time, since all at once fill
/// the queue of misses and stall the loads behind them: 8 lines per 4 keys scored and 1 per row decoded or added read a
/// float16 cache at 12.0 GB/s for 4 queries on one core of an EPYC, all in the first loop at 9.0, none at 8.1.
struct Ahead {
  const std::byte* next;
  const std::byte* end;

  void ask(int lines) noexcept {
    for (int i = 0; i < lines && next < end; ++i, next += 64) __builtin_prefetch(next);
  }
};

/// The part of the cache that a tile of queries sees, and its rows in float32.
struct CacheTile {
  const AttentionArgs& args;
  std::size_t first_key, end_key;  // all that any query sees
  std::size_t width;               // floats per row: head_values rounded up to vectors, zeros at the end
  float* rows;                     // [kTileKeys][width]

  void include(KeyRange range) noexcept {
    if (range.count == 0) return;
    first_key = range.first < first_key ? range.first : first_key;
    end_key = range.first + range.count > end_key ? range.first + range.count : end_key;
  }

  template <CacheType kType>
  void decode_as(const std::byte* cache, std::size_t key, Ahead& ahead) const noexcept {
    for (std::size_t i = 0; i < kTileKeys; ++i) {
      const std::size_t row = key + i;
      float* to = rows + i * width;
      if (row < first_key || row >= end_key) {  // may not exist, or not have been written
        for (std::size_t j = 0; j < width; j += kLanes) store_floats(splat(0.0f), to + j);
        continue;
      }
      ahead.ask(1);
      decode_row<kType>(args, row_at(args, cache, row), to);
    }
  }

  /// The rows that a tile at `key` has in `cache`.
  Ahead lines_of(const std::byte* cache, std::size_t key) const noexcept {
    const std::size_t begin = key < first_key ? first_key : key < end_key ? key : end_key;
    const std::size_t end = key + kTileKeys < end_key ? key + kTileKeys : end_key;
    if (begin >= end) return {nullptr, nullptr};
    const std::byte* const first = row_at(args, cache, begin);
    return {first, first + (end - begin) * args.row_bytes};
  }

  /// Rows key … key + kTileKeys - 1 of `cache`; zeros outside [first_key, end_key).
  void decode(const std::byte* cache, std::size_t key, Ahead& ahead) const noexcept {
    switch (args.type) {
      case CacheType::f32: return decode_as<CacheType::f32>(cache, key, ahead);
      case CacheType::f16: return decode_as<CacheType::f16>(cache, key, ahead);
      case CacheType::q8_0: return decode_as<CacheType::q8_0>(cache, key, ahead);
    }
  }
};

/// scores[n][k] = q[n] · rows[k] for kQueries queries and all keys of the tile.
template <int kQueries>
inline void score_queries(const float* q, const float* rows, std::size_t width, float* scores, Ahead& ahead) noexcept {
  for (std::size_t key = 0; key < kTileKeys; key += 4) {
    ahead.ask(8);
    Floats sums[kQueries][4];
    for (auto& of_query : sums) {
      for (Floats& sum : of_query) sum = splat(0.0f);
    }
    const float* row = rows + key * width;
    for (std::size_t i = 0; i < width; i += kLanes) {
      Floats keys[4];
      for (std::size_t k = 0; k < 4; ++k) keys[k] = load_floats(row + k * width + i);
      for (std::size_t n = 0; n < kQueries; ++n) {
        const Floats query = load_floats(q + n * width + i);
        for (int k = 0; k < 4; ++k) sums[n][k] = fused(query, keys[k], sums[n][k]);
      }
    }
    for (std::size_t n = 0; n < kQueries; ++n) store_sums4(sums[n], scores + n * kTileKeys + key);
  }
}

/// y[n] = y[n] · shrink[n] + Σ weights[n][k] · rows[k], for kQueries queries and kVectors vectors.
template <int kQueries, int kVectors>
inline void add_values(const float* weights, const float* shrink, const float* rows, std::size_t width, float* y,
                       Ahead& ahead) noexcept {
  Floats sums[kQueries][kVectors];
  for (std::size_t n = 0; n < kQueries; ++n) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      sums[n][v] = load_floats(y + n * width + v * kLanes) * splat(shrink[n]);
    }
  }
  for (std::size_t key = 0; key < kTileKeys; ++key) {
    ahead.ask(1);
    Floats values[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) values[v] = load_floats(rows + key * width + v * kLanes);
    for (std::size_t n = 0; n < kQueries; ++n) {
      const Floats weight = splat(weights[n * kTileKeys + key]);
      for (int v = 0; v < kVectors; ++v) sums[n][v] = fused(weight, values[v], sums[n][v]);
    }
  }
  for (std::size_t n = 0; n < kQueries; ++n) {
    for (std::size_t v = 0; v < kVectors; ++v) store_floats(sums[n][v], y + n * width + v * kLanes);
  }
}

template <int kQueries>
inline void add_values(const float* weights, const float* shrink, const float* rows, std::size_t width, float* y,
                       Ahead& ahead) noexcept {
  std::size_t i = 0;
  for (; i + kSumVectors * kLanes <= width; i += kSumVectors * kLanes) {
    add_values<kQueries, kSumVectors>(weights, shrink, rows + i, width, y + i, ahead);
  }
  for (; i < width; i += kLanes) add_values<kQueries, 1>(weights, shrink, rows + i, width, y + i, ahead);
}

/// One query on its way through the keys.
struct Running {
  float largest = -kInfinity;
  float sum = 0;  // of e^(score - largest)

  /// Scores of the keys [begin, end) of a tile become weights, those of others 0. Returns by what earlier sums shrink.
  float weigh(float* scores, std::size_t begin, std::size_t end, float cap) noexcept {
    if (cap > 0) {
      for (std::size_t i = 0; i < kTileKeys; i += kLanes)
        store_floats(soft_cap(load_floats(scores + i), cap), scores + i);
    }
    for (std::size_t i = 0; i < begin; ++i) scores[i] = -kInfinity;
    for (std::size_t i = end; i < kTileKeys; ++i) scores[i] = -kInfinity;
    const float tile_largest = max_over(kTileKeys, [&](std::size_t i, auto part) { return part.load(scores + i); });
    const float larger = tile_largest > largest ? tile_largest : largest;
    // Without any key so far there is nothing to subtract: -inf from -inf would be no number.
    const Floats base = splat(larger == -kInfinity ? 0.0f : larger);
    Floats tile_sum = splat(0.0f);
    for (std::size_t i = 0; i < kTileKeys; i += kLanes) {
      const Floats weight = exp_of(load_floats(scores + i) - base);
      store_floats(weight, scores + i);
      tile_sum = tile_sum + weight;
    }
    const float shrink = larger == largest ? 1.0f : max_lane(exp_of(splat(largest) - base));
    largest = larger;
    sum = sum * shrink + sum_lanes(tile_sum);
    return shrink;
  }
};

/// Queries of a call, counted token by token and head by head, that go through the keys together.
struct QueryTile {
  const AttentionArgs& args;
  std::size_t first, count;  // count <= kTileQueries
  std::size_t width;         // floats per query: head_values rounded up to vectors, zeros at the end
  float* q;                  // [count][width], times the scale
  float* y;                  // [count][width], not yet divided by the sums of weights
  float* scores;             // [count][kTileKeys], later weights
  Running running[kTileQueries];
  float shrink[kTileQueries];

  KeyRange range(std::size_t n) const noexcept { return args.ranges[(first + n) / args.group]; }
  std::size_t offset(std::size_t n) const noexcept {
    return (first + n) / args.group * args.token_stride + (first + n) % args.group * args.head_values;
  }

  void load() noexcept {
    for (std::size_t n = 0; n < count; ++n) {
      // A sink is like a key that has been seen, whose value is 0.
      if (args.sinks != nullptr) running[n] = {args.sinks[(first + n) % args.group], 1};
      const float* from = args.q + offset(n);
      for_each_vector(args.head_values, [&](std::size_t i, auto part) {
        store_floats(part.load(from + i) * splat(args.scale), q + n * width + i);
        store_floats(splat(0.0f), y + n * width + i);
      });
    }
  }

  void score(const float* rows, Ahead& ahead) const noexcept {
    std::size_t n = 0;
    for (; n + kScoreQueries <= count; n += kScoreQueries) {
      score_queries<kScoreQueries>(q + n * width, rows, width, scores + n * kTileKeys, ahead);
    }
    for (; n < count; ++n) score_queries<1>(q + n * width, rows, width, scores + n * kTileKeys, ahead);
  }

  /// Makes weights of the scores of the keys from `key` on.
  void weigh(std::size_t key) noexcept {
    const auto in_tile = [&](std::size_t k) { return k <= key ? 0 : k - key < kTileKeys ? k - key : kTileKeys; };
    for (std::size_t n = 0; n < count; ++n) {
      const KeyRange seen = range(n);
      const std::size_t begin = in_tile(seen.first), end = in_tile(seen.first + seen.count);
      shrink[n] = running[n].weigh(scores + n * kTileKeys, begin, end, args.cap);
    }
  }

  void add(const float* rows, Ahead& ahead) const noexcept {
    std::size_t n = 0;
    for (; n + 4 <= count; n += 4) {
      add_values<4>(scores + n * kTileKeys, shrink + n, rows, width, y + n * width, ahead);
    }
    for (; n < count; ++n) add_values<1>(scores + n * kTileKeys, shrink + n, rows, width, y + n * width, ahead);
  }

  void store() const noexcept {
    for (std::size_t n = 0; n < count; ++n) {
      const Floats factor = splat(running[n].sum == 0 ? 0.0f : 1 / running[n].sum);
      float* to = args.y + offset(n);
      for_each_vector(args.head_values,
                      [&](std::size_t i, auto part) { part.store(load_floats(y + n * width + i) * factor, to + i); });
    }
  }
};

inline void attend(const AttentionArgs& a, std::size_t first, std::size_t count) noexcept {
  const std::size_t width = (a.head_values + kLanes - 1) / kLanes * kLanes;
  float* const rows = reinterpret_cast<float*>(a.scratch);
  float* const q = rows + kTileKeys * width;
  float* const y = q + kTileQueries * width;
  QueryTile queries{a, first, count, width, q, y, y + kTileQueries * width, {}, {}};
  CacheTile cache{a, ~std::size_t{0}, 0, width, rows};
  for (std::size_t n = 0; n < count; ++n) cache.include(queries.range(n));

  queries.load();
  for (std::size_t key = cache.first_key / kTileKeys * kTileKeys; key < cache.end_key; key += kTileKeys) {
    Ahead ahead = cache.lines_of(a.values, key);
    cache.decode(a.keys, key, ahead);
    queries.score(rows, ahead);
    queries.weigh(key);
    ahead = cache.lines_of(a.keys, key + kTileKeys);
    cache.decode(a.values, key, ahead);
    queries.add(rows, ahead);
  }
  queries.store();
}
