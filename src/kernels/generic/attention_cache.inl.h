// Rows of a cache of keys and values, over the lanes of the surrounding namespace.

/// Row `key` of a head. The rows of a tile of kTileKeys that begins at a multiple of that follow each other.
inline const std::byte* row_at(const AttentionArgs& args, const std::byte* cache, std::size_t key) noexcept {
  const std::size_t within = key & ((std::size_t{1} << args.page_shift) - 1);
  return cache + args.pages[key >> args.page_shift] * args.page_bytes + within * args.row_bytes;
}

/// A row of a cache in float32; up to the next vector it is filled with zeros.
template <CacheType kType>
inline void decode_row(const AttentionArgs& args, const std::byte* from, float* to) noexcept {
  if constexpr (kType == CacheType::q8_0) {
    for (std::size_t i = 0; i < args.head_values; i += 32, from += 34) {
      std::uint16_t code;
      __builtin_memcpy(&code, from, 2);
      const Floats scale = splat(half_to_float(code));
      for (std::size_t j = 0; j < 32; j += kLanes) {
        store_floats(to_floats(load_i8(from + 2 + j)) * scale, to + i + j);
      }
    }
  } else if constexpr (kType == CacheType::f16) {
    const std::size_t whole = args.head_values / kLanes * kLanes;
    for (std::size_t i = 0; i < whole; i += kLanes) store_floats(load_halves(from + 2 * i), to + i);
    if (whole == args.head_values) return;
    std::byte last[2 * kLanes] = {};
    __builtin_memcpy(last, from + 2 * whole, 2 * (args.head_values - whole));
    store_floats(load_halves(last), to + whole);
  } else {
    const auto floats = reinterpret_cast<const float*>(from);
    for_each_vector(args.head_values, [&](std::size_t i, auto part) { store_floats(part.load(floats + i), to + i); });
  }
}
