// Scales of a run form, beside the codes they belong to: for each group of columns one number per row of the panel, so
// that a vector load brings those of all rows. A layout has some bytes in front of every 256 columns (super_bytes) and
// some in front of every 32 (kBlockBytes), and reads them back as floats: `read` gets both places, which of the eight
// blocks of 32 it is, and which group within it.

/// What multiplies the codes of one group, and what is subtracted.
struct GroupScale {
  Floats scale, offset;
};

/// One binary16 scale, and perhaps one offset, per 32 columns: q4_0, q4_1, q5_0, q5_1, q8_0, iq4_nl.
template <bool kOffsets>
struct HalfScales {
  static constexpr int kGroup = 32;
  static constexpr bool kHasOffset = kOffsets;
  static constexpr int kBlockBytes = (kOffsets ? 4 : 2) * kLanes;

  explicit HalfScales(std::size_t) noexcept {}
  std::size_t super_bytes() const noexcept { return 0; }
  GroupScale read(const std::byte*, const std::byte* block, int, int) const noexcept {
    return {load_halves(block), kOffsets ? load_halves(block + 2 * kLanes) : splat(0.0f)};
  }
};

/// A binary16 scale per 256 columns, multiplied by a small integer per group: the K formats and iq4_xs.
template <int kGroupColumns, bool kSignedSubs, bool kOffsets>
struct SuperScales {
  static constexpr int kGroup = kGroupColumns;
  static constexpr bool kHasOffset = kOffsets;
  static constexpr int kGroupBytes = (kOffsets ? 2 : 1) * kLanes;
  static constexpr int kBlockBytes = 32 / kGroup * kGroupBytes;

  explicit SuperScales(std::size_t) noexcept {}
  std::size_t super_bytes() const noexcept { return (kOffsets ? 4 : 2) * kLanes; }
  GroupScale read(const std::byte* super, const std::byte* block, int, int group) const noexcept {
    const std::byte* subs = block + group * kGroupBytes;
    const Floats scale = load_halves(super) * to_floats(kSignedSubs ? load_i8(subs) : load_u8(subs));
    if constexpr (!kOffsets) return {scale, splat(0.0f)};
    return {scale, load_halves(super + 2 * kLanes) * to_floats(load_u8(subs + kLanes))};
  }
};

/// One binary16 scale per 256 columns: tq1_0, tq2_0.
struct WideScales {
  static constexpr int kGroup = 32;
  static constexpr bool kHasOffset = false;
  static constexpr int kBlockBytes = 0;

  explicit WideScales(std::size_t) noexcept {}
  std::size_t super_bytes() const noexcept { return 2 * kLanes; }
  GroupScale read(const std::byte* super, const std::byte*, int, int) const noexcept {
    return {load_halves(super), splat(0.0f)};
  }
};

/// An E8M0 exponent per 32 columns; the levels are doubled, so the factor is 2^(exponent - 128). mxfp4.
struct ExponentScales {
  static constexpr int kGroup = 32;
  static constexpr bool kHasOffset = false;
  static constexpr int kBlockBytes = kLanes;

  explicit ExponentScales(std::size_t) noexcept {}
  std::size_t super_bytes() const noexcept { return 0; }
  GroupScale read(const std::byte*, const std::byte* block, int, int) const noexcept {
    // Two powers of two, both normal, whose product is subnormal where it must be.
    const Ints exponent = load_u8(block);
    const Ints half = shift_right(exponent, 1);
    const Floats first = from_bits(shift_left(half + splat_int(63), 23));
    const Floats second = from_bits(shift_left(exponent - half + splat_int(63), 23));
    return {first * second, splat(0.0f)};
  }
};

/// An E4M3 code per 16 columns; the levels are doubled. nvfp4.
struct SmallFloatScales {
  static constexpr int kGroup = 16;
  static constexpr bool kHasOffset = false;
  static constexpr int kBlockBytes = 2 * kLanes;

  explicit SmallFloatScales(std::size_t) noexcept {}
  std::size_t super_bytes() const noexcept { return 0; }
  GroupScale read(const std::byte*, const std::byte* block, int, int group) const noexcept {
    // Exponent and mantissa moved into place; the power of two corrects the bias and brings subnormals out right.
    const Ints code = load_u8(block + group * kLanes);
    return {from_bits(shift_left(code, 20)) * splat(0x1p119f), splat(0.0f)};
  }
};

/// Float32 scales of a dtype: one per 32, 64 or 128 columns in front of every 256, or none, when one per row is applied
/// to the finished sum.
struct FloatScales {
  static constexpr int kGroup = 32;
  static constexpr bool kHasOffset = false;
  static constexpr int kBlockBytes = 0;

  explicit FloatScales(std::size_t columns_per_scale) noexcept
      : blocks_per_scale(static_cast<int>(columns_per_scale / 32)) {}
  std::size_t super_bytes() const noexcept {
    return blocks_per_scale == 0 ? 0 : static_cast<std::size_t>(8 / blocks_per_scale * 4 * kLanes);
  }
  GroupScale read(const std::byte* super, const std::byte*, int block_of_super, int) const noexcept {
    if (blocks_per_scale == 0) return {splat(1.0f), splat(0.0f)};
    const std::byte* at = super + block_of_super / blocks_per_scale * 4 * kLanes;
    return {from_bits(load_32(at)), splat(0.0f)};
  }

  int blocks_per_scale;
};
