// Panels: kLanes rows of a matrix, interleaved. Every 32 columns have their scales and then their codes.
//
// Codes are stored in bands of 1, 2, 4 or 8 bits. A *step* is four columns, one quad per row; 32 columns are 8 steps.
//
//   8 bits   step k is vector k
//   4 bits   vector k/2; even steps in the low halves of the bytes, odd ones in the high halves
//   2 bits   vector k/4; step k%4 in bits 2(k%4), 2(k%4)+1 of every byte
//   1 bit    one vector; step k in bit k of every byte
//
// Codes of 3, 5 and 6 bits are a band of 2, 4 and 4 bits and one of 1, 1 and 2 bits above it. Where eight columns share
// their upper bit (iq1), a byte per row has those of 32 columns instead, the first in its lowest bit.

/// body(integral_constant<int, 0>{}) … body(integral_constant<int, kCount - 1>{}). A loop that the compiler leaves
/// rolled keeps its sums in memory, or copies every register in every round; this one cannot stay rolled.
template <int kCount, int kFirst = 0, class Body>
inline void unrolled(Body&& body) noexcept {
  if constexpr (kFirst < kCount) {
    body(std::integral_constant<int, kFirst>{});
    unrolled<kCount, kFirst + 1>(body);
  }
}

inline constexpr int kVectorBytes = 4 * kLanes;
inline constexpr int kSteps = 8;

template <int kBandBits>
inline constexpr int kBandBytes = kBandBits* kVectorBytes;

template <int kBandBits>
inline Ints band_step(const std::byte* band, int k) noexcept {
  if constexpr (kBandBits == 8) {
    return load_32(band + k * kVectorBytes);
  } else {
    constexpr int kPerByte = 8 / kBandBits;
    constexpr int kMask = static_cast<int>(((1u << kBandBits) - 1) * 0x01010101u);
    const Ints packed = load_32(band + k / kPerByte * kVectorBytes);
    return shift_right(packed, kBandBits * (k % kPerByte)) & splat_int(kMask);
  }
}

/// How codes of kBits bits are cut into bands. kHighSpan: columns that share their upper bits.
template <int kBits, int kHighSpan = 1>
struct PanelCodes {
  static_assert(kBits == 1 || kBits == 2 || kBits == 3 || kBits == 4 || kBits == 5 || kBits == 6 || kBits == 8);
  static constexpr int kLow = kBits == 3 ? 2 : kBits == 5 || kBits == 6 ? 4 : kBits;
  static constexpr int kHigh = kBits - kLow;
  static constexpr bool kShared = kHighSpan != 1;
  static_assert(!kShared || (kBits == 3 && kHighSpan == 8));
  static constexpr int kBytes = kShared ? kBandBytes<kLow> + kLanes : kBits * kVectorBytes;

  /// Codes of step k, one per byte.
  static Ints step(const std::byte* codes, int k) noexcept {
    const Ints low = band_step<kLow>(codes, k);
    if constexpr (kHigh == 0) {
      return low;
    } else if constexpr (kShared) {
      const Ints bit = shift_right(load_u8(codes + kBandBytes<kLow>), k / 2) & splat_int(1);
      return low | ((splat_int(0) - bit) & splat_int(0x04040404));
    } else {
      return low | shift_left(band_step<kHigh>(codes + kBandBytes<kLow>, k), kLow);
    }
  }

  /// The reverse: `quads` holds kSteps vectors of codes.
  static void store(const Ints* quads, std::byte* codes) noexcept {
    store_band<kLow>(quads, 0, codes);
    if constexpr (kShared) {
      Ints bits = splat_int(0);
      for (int k = 0; k < kSteps; k += 2) bits = bits | shift_left(shift_right(quads[k], kLow) & splat_int(1), k / 2);
      store_low8(bits, codes + kBandBytes<kLow>);
    } else if constexpr (kHigh != 0) {
      store_band<kHigh>(quads, kLow, codes + kBandBytes<kLow>);
    }
  }

 private:
  template <int kBandBits>
  static void store_band(const Ints* quads, int from_bit, std::byte* band) noexcept {
    constexpr int kPerByte = 8 / kBandBits;
    constexpr int kMask = static_cast<int>(((1u << kBandBits) - 1) * 0x01010101u);
    for (int vector = 0; vector < kBandBits; ++vector) {
      Ints packed = splat_int(0);
      for (int i = 0; i < kPerByte; ++i) {
        const Ints field = shift_right(quads[vector * kPerByte + i], from_bit) & splat_int(kMask);
        packed = packed | shift_left(field, kBandBits * i);
      }
      store_32(packed, band + vector * kVectorBytes);
    }
  }
};

// ---- scales, beside the codes they belong to: for each group of columns one number per row of the panel, so
// that a vector load brings those of all rows. A layout has some bytes in front of every 256 columns (super_bytes) and
// some in front of every 32 (kBlockBytes), and reads them back as floats: `read` gets both places, which of the eight
// blocks of 32 it is, and which group within it.

/// What multiplies the codes of one group, and what is subtracted.
struct GroupScale {
  Floats scale, offset;
};

/// One binary16 scale, and perhaps one offset, per 32 columns: q4_0, q4_1, q5_0, q5_1, q8_0, iq4_nl; repeated for the
/// 64 and 128 columns of q2_0 and q1_0.
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

/// A binary16 scale per 256 columns, multiplied by a small integer per group and by 2^kUnitExponent: the K formats and
/// those with codebooks.
template <int kGroupColumns, bool kSignedSubs, bool kOffsets, int kUnitExponent = 0>
struct SuperScales {
  static constexpr int kGroup = kGroupColumns;
  static constexpr bool kHasOffset = kOffsets;
  static constexpr int kGroupBytes = (kOffsets ? 2 : 1) * kLanes;
  static constexpr int kBlockBytes = 32 / kGroup * kGroupBytes;

  explicit SuperScales(std::size_t) noexcept {}
  std::size_t super_bytes() const noexcept { return (kOffsets ? 4 : 2) * kLanes; }
  GroupScale read(const std::byte* super, const std::byte* block, int, int group) const noexcept {
    const std::byte* subs = block + group * kGroupBytes;
    Floats scale = load_halves(super) * to_floats(kSignedSubs ? load_i8(subs) : load_u8(subs));
    if constexpr (kUnitExponent != 0) scale = scale * splat(1.0f / static_cast<float>(1 << -kUnitExponent));
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
/// to the finished sum. With kOffsets zero points stand behind them, less the zero of the levels, in one byte each: as
/// float32 they would be a fifth of what a product of 4 bits reads.
template <bool kOffsets>
struct FloatScales {
  static constexpr int kGroup = 32;
  static constexpr bool kHasOffset = kOffsets;
  static constexpr int kBlockBytes = 0;
  static constexpr int kGroupBytes = (kOffsets ? 5 : 4) * kLanes;

  explicit FloatScales(std::size_t columns_per_scale) noexcept
      : blocks_per_scale(static_cast<int>(columns_per_scale / 32)) {}
  std::size_t super_bytes() const noexcept {
    if (blocks_per_scale == 0) return 0;
    constexpr int kVector = 4 * kLanes;  // codes that follow are loaded in vectors
    return static_cast<std::size_t>((8 / blocks_per_scale * kGroupBytes + kVector - 1) / kVector * kVector);
  }
  GroupScale read(const std::byte* super, const std::byte*, int block_of_super, int) const noexcept {
    if (blocks_per_scale == 0) return {splat(1.0f), splat(0.0f)};
    const std::byte* at = super + block_of_super / blocks_per_scale * kGroupBytes;
    const Floats scale = from_bits(load_32(at));
    if constexpr (!kOffsets) return {scale, splat(0.0f)};
    return {scale, scale * to_floats(load_i8(at + 4 * kLanes))};
  }

  int blocks_per_scale;
};

// ---- which codes, levels and scales make up the panels of a type, from its description

/// Codes whose level is kStep · code - kZero.
template <int kZero, int kStep = 1>
struct LinearLevels {
  static constexpr bool kIsTable = false;
  static constexpr int kHighSpan = 1;
  static constexpr int zero = kZero;
  static constexpr int step = kStep;
  static constexpr float level(int code) noexcept { return static_cast<float>(kStep * code - kZero); }
};

/// Codes that index up to 16 levels.
template <class Levels>
struct TableLevels {
  static constexpr bool kIsTable = true;
  static constexpr int kHighSpan = [] {
    if constexpr (requires { Levels::kHighSpan; }) return Levels::kHighSpan;
    return 1;
  }();
  static constexpr int largest = [] {
    int most = 0;
    for (const int level : Levels::kTable) most = level > most ? level : -level > most ? -level : most;
    return most;
  }();
  static constexpr float level(int code) noexcept { return static_cast<float>(Levels::kTable[code & 15]); }
};

template <int kCodeBits, class CodeLevels, class ScaleLayout>
struct PanelLayout {
  static constexpr int kBits = kCodeBits;
  using Levels = CodeLevels;
  using Scales = ScaleLayout;
  using Codes = PanelCodes<kBits, Levels::kHighSpan>;
};

template <class T>
inline constexpr bool kIsBlock = requires {
  T::kValues;
};
template <class T>
inline constexpr bool kIsFp8 = std::is_same_v<T, Fp8E4M3> || std::is_same_v<T, Fp8E5M2>;

template <class Block>
constexpr auto block_panel_layout() noexcept {
  constexpr auto levels = [] {
    if constexpr (Block::Levels::kIsTable) {
      return TableLevels<typename Block::Levels>{};
    } else {
      return LinearLevels<Block::Levels::kZero, Block::Levels::kStep>{};
    }
  }();
  const auto with = []<class Scales>(std::type_identity<Scales>) {
    return PanelLayout<Block::kBits, std::remove_const_t<decltype(levels)>, Scales>{};
  };
  if constexpr (Block::kScales == ScaleKind::half && Block::kGroup <= 128) {
    return with(std::type_identity<HalfScales<Block::kHasOffset>>{});
  } else if constexpr (Block::kScales == ScaleKind::half && Block::kGroup == 256) {
    return with(std::type_identity<WideScales>{});
  } else if constexpr (Block::kScales == ScaleKind::sub_scales) {
    return with(std::type_identity<
                SuperScales<Block::kGroup, Block::kSignedSubs, Block::kHasOffset, kUnitExponentOf<Block>>>{});
  } else if constexpr (Block::kScales == ScaleKind::exponent && Block::kGroup == 32) {
    return with(std::type_identity<ExponentScales>{});
  } else if constexpr (Block::kScales == ScaleKind::small_float && Block::kGroup == 16) {
    return with(std::type_identity<SmallFloatScales>{});
  } else {
    static_assert(Block::kScales == ScaleKind::single, "no panels hold such scales");
  }
}

/// Unsigned types have zero points. Their codes are read as those of the signed type, less half their range: a
/// zero point is near that half where weights are spread around 0, and sums cancel little.
template <class T>
inline constexpr bool kHasZeroPoints = [] {
  if constexpr (kIsBlock<T>) {
    return false;
  } else {
    return kKind<T> == NumberKind::unsigned_integer;
  }
}();
template <class T>
inline constexpr int kCentre = 1 << (kBits<T> - 1);

/// Scalar types of 8 bits and fewer but fp8: their codes are integers, or numbers of the doubled levels of fp4. Zero
/// points of groups are offsets; those of rows are ProductArgs::row_offsets, so that such panels are as cheap as those
/// of the signed type.
template <class T, bool kGrouped>
constexpr auto dtype_panel_layout() noexcept {
  if constexpr (kKind<T> == NumberKind::narrow_float) {
    return PanelLayout<kBits<T>, TableLevels<E2M1Levels>, FloatScales<false>>{};
  } else if constexpr (kKind<T> == NumberKind::binary) {
    return PanelLayout<kBits<T>, LinearLevels<1, 2>, FloatScales<false>>{};
  } else {
    return PanelLayout<kBits<T>, LinearLevels<kCentre<T>>, FloatScales<kHasZeroPoints<T> && kGrouped>>{};
  }
}

template <class T, bool kGrouped>
constexpr auto panel_layout() noexcept {
  if constexpr (kIsBlock<T>) {
    return block_panel_layout<T>();
  } else if constexpr (kBits<T> <= 8 && !kIsFp8<T>) {
    return dtype_panel_layout<T, kGrouped>();
  }
}

/// Types with the same codes, levels and scales have the same panels, and so the same kernels. void: the type has none
/// (scalars in columns, see matrix_columns.inl.h, and the format of `.entity` files, which is converted when loaded).
/// kGrouped: with scales of groups, which makes a difference to unsigned types.
template <class T, bool kGrouped = false>
using PanelLayoutOf = decltype(panel_layout<T, kGrouped>());
template <class T>
inline constexpr bool kHasPanels = !std::is_void_v<PanelLayoutOf<T>>;
