// From the canonical layout, row by row, to panels.

/// What a stored level has to be multiplied with: the levels of fp4 are doubled to be integers.
template <class T>
inline constexpr float kPackedUnit = std::is_same_v<T, Fp4> ? 0.5f : 1.0f;

/// The scale of a weight; a stored 0 acts as 1.
inline float scale_of(const MatrixSource& s, std::size_t row, std::size_t column) noexcept {
  const float scale = s.scales == nullptr ? 1.0f : s.scales[(s.first + row * s.cols + column) / s.scale_group];
  return scale == 0 ? 1.0f : scale;
}

inline float zero_point_of(const MatrixSource& s, std::size_t row, std::size_t column) noexcept {
  return s.zero_points == nullptr ? 0.0f : s.zero_points[(s.first + row * s.cols + column) / s.scale_group];
}

/// 256 columns of one row of T: unsigned codes, and the scales as they are stored.
template <class T>
struct RowPiece {
  std::uint8_t codes[256];
  float scales[8];       // per 32 columns
  std::int8_t zeros[8];  // likewise, less kCentre, of types with zero points
};
template <class T>
requires kIsBlock<T>
struct RowPiece<T> {
  std::uint8_t codes[256];
  BlockScales blocks[256 / T::kValues];

  /// The scales of group g of the 32 columns number b: those of the block, and its number there.
  const BlockScales& scales(int b) const noexcept { return blocks[32 * b / T::kValues]; }
  static constexpr int group(int b, int g) noexcept { return 32 * b % T::kValues / T::kGroup + g; }
};

/// Codes of a block as unsigned numbers.
template <class Block>
inline void unsigned_codes(const Block& block, std::uint8_t* codes) noexcept {
  using Levels = typename Block::Levels;
  std::int8_t levels[Block::kValues];
  block.levels(levels);
  if constexpr (Levels::kIsTable) {
    struct Inverse {
      std::uint8_t code[256] = {};
      constexpr Inverse() noexcept {
        for (int i = 15; i >= 0; --i) code[static_cast<std::uint8_t>(Levels::kTable[i])] = static_cast<std::uint8_t>(i);
      }
    };
    static constexpr Inverse kInverse{};
    for (int i = 0; i < Block::kValues; ++i) codes[i] = kInverse.code[static_cast<std::uint8_t>(levels[i])];
  } else {
    for (int i = 0; i < Block::kValues; ++i) {
      codes[i] = static_cast<std::uint8_t>((levels[i] + Levels::kZero) / Levels::kStep);
    }
  }
}

/// Only what the format has: copying the whole struct would wait for the few bytes that were just written to it.
template <class Block>
inline void take_scales(const Block& block, BlockScales& to) noexcept {
  const BlockScales s = block.scales();
  to.scale = s.scale;
  if (Block::kHasOffset) to.min = s.min;
  if constexpr (Block::kScales != ScaleKind::half) {
    for (int g = 0; g < Block::kValues / Block::kGroup; ++g) {
      to.subs[g] = s.subs[g];
      if (Block::kHasOffset) to.lows[g] = s.lows[g];
    }
  }
}

/// Columns [first, first + 256) of a row, fewer at its end; what is missing stays zero.
template <class T>
inline void take_piece(const MatrixSource& s, std::size_t row, std::size_t first, RowPiece<T>& piece) noexcept {
  const std::size_t count = s.cols - first < 256 ? s.cols - first : 256;
  if constexpr (kIsBlock<T>) {
    const T* blocks = reinterpret_cast<const T*>(s.packed) + (s.first + row * s.cols + first) / T::kValues;
    for (std::size_t i = 0; i < count / T::kValues; ++i) {
      unsigned_codes(blocks[i], piece.codes + i * T::kValues);
      take_scales(blocks[i], piece.blocks[i]);
    }
  } else {
    constexpr std::size_t kCodeBits = static_cast<std::size_t>(kBits<T>);
    constexpr std::size_t kPerByte = 8 / kCodeBits;
    constexpr unsigned kMask = (1u << kCodeBits) - 1;
    constexpr bool kTwosComplement = kKind<T> == NumberKind::signed_integer || kKind<T> == NumberKind::ternary;
    constexpr unsigned kFlip = kTwosComplement ? 1u << (kCodeBits - 1) : 0u;  // v + 2^(bits-1), as an unsigned number
    for (std::size_t c = 0; c < count; ++c) {
      const std::size_t i = s.first + row * s.cols + first + c;
      const unsigned byte = static_cast<unsigned>(s.packed[i / kPerByte]);
      const unsigned field = byte >> (8 - kCodeBits * (i % kPerByte + 1)) & kMask;
      piece.codes[c] = static_cast<std::uint8_t>(field ^ kFlip);
    }
    for (std::size_t b = 0; b * 32 < count; ++b) {
      const std::size_t column = first + b * 32;
      piece.scales[b] = scale_of(s, row, column) * kPackedUnit<T>;
      if constexpr (kHasZeroPoints<T>) {
        piece.zeros[b] = static_cast<std::int8_t>(static_cast<int>(zero_point_of(s, row, column)) - kCentre<T>);
      }
    }
  }
}

// ---- scales of a panel, as matrix_panels.inl.h reads them

inline void put_half(std::uint32_t code, std::byte* to) noexcept { __builtin_memcpy(to, &code, 2); }

template <bool kOffsets, class Piece>
inline void put_scales(HalfScales<kOffsets>, const Piece& p, int lane, std::byte*, std::byte* block, int b) noexcept {
  put_half(p.scales(b).scale, block + 2 * lane);
  // A minimum is added, an offset subtracted: flip the sign bit.
  if (kOffsets) put_half(p.scales(b).min ^ 0x8000u, block + 2 * kLanes + 2 * lane);
}
template <int kGroup, bool kSigned, bool kOffsets, int kUnitExponent, class Piece>
inline void put_scales(SuperScales<kGroup, kSigned, kOffsets, kUnitExponent>, const Piece& p, int lane,
                       std::byte* super, std::byte* block, int b) noexcept {
  const BlockScales& s = p.scales(b);
  put_half(s.scale, super + 2 * lane);
  if (kOffsets) put_half(s.min, super + 2 * kLanes + 2 * lane);
  for (int g = 0; g < 32 / kGroup; ++g) {
    std::byte* at = block + g * SuperScales<kGroup, kSigned, kOffsets>::kGroupBytes + lane;
    *at = static_cast<std::byte>(s.subs[Piece::group(b, g)]);
    if (kOffsets) at[kLanes] = static_cast<std::byte>(s.lows[Piece::group(b, g)]);
  }
}
template <class Piece>
inline void put_scales(WideScales, const Piece& p, int lane, std::byte* super, std::byte*, int b) noexcept {
  put_half(p.scales(b).scale, super + 2 * lane);
}
template <class Piece>
inline void put_scales(ExponentScales, const Piece& p, int lane, std::byte*, std::byte* block, int b) noexcept {
  block[lane] = static_cast<std::byte>(p.scales(b).subs[Piece::group(b, 0)]);
}
template <class Piece>
inline void put_scales(SmallFloatScales, const Piece& p, int lane, std::byte*, std::byte* block, int b) noexcept {
  for (int g = 0; g < 2; ++g) block[g * kLanes + lane] = static_cast<std::byte>(p.scales(b).subs[Piece::group(b, g)]);
}
template <bool kOffsets, class Piece>
inline void put_scales(FloatScales<kOffsets> layout, const Piece& p, int lane, std::byte* super, std::byte*,
                       int b) noexcept {
  if (layout.blocks_per_scale == 0) return;
  std::byte* const at = super + b / layout.blocks_per_scale * FloatScales<kOffsets>::kGroupBytes;
  __builtin_memcpy(at + lane * 4, &p.scales[b], 4);
  if (kOffsets) at[4 * kLanes + lane] = static_cast<std::byte>(p.zeros[b]);
}

template <class T, class Format>
void pack_panels(const PackArgs& args) noexcept {
  const MatrixSource& s = args.source;
  const std::size_t scale_group = args.scale_group;
  const typename Format::Scales layout(scale_group);
  const std::size_t bytes = panel_bytes<Format>(s.cols, scale_group);
  for (std::size_t p = args.first_panel; p < args.last_panel; ++p) {
    std::byte* at = args.run + p * bytes;
    if constexpr (kHasRowScales<Format>) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const std::size_t row = p * kLanes + lane;
        const float scale = row < s.rows && scale_group == 0 ? scale_of(s, row, 0) * kPackedUnit<T> : 1.0f;
        __builtin_memcpy(at + lane * 4, &scale, 4);
      }
      at += kHeaderBytes<Format>;
    }
    for (std::size_t first = 0; first < s.cols; first += 256) {
      RowPiece<T> pieces[kLanes] = {};
      for (std::size_t lane = 0; lane < kLanes && p * kLanes + lane < s.rows; ++lane) {
        take_piece<T>(s, p * kLanes + lane, first, pieces[lane]);
      }
      std::byte* super = at;
      at += layout.super_bytes();
      const std::size_t blocks = s.cols - first < 256 ? (s.cols - first + 31) / 32 : 8;
      for (std::size_t b = 0; b < blocks; ++b) {
        for (int lane = 0; lane < kLanes; ++lane)
          put_scales(layout, pieces[lane], lane, super, at, static_cast<int>(b));
        Ints quads[kSteps];
        for (int k = 0; k < kSteps; ++k) {
          std::byte quad[kVectorBytes];
          for (int lane = 0; lane < kLanes; ++lane) {
            __builtin_memcpy(quad + 4 * lane, pieces[lane].codes + 32 * b + 4 * static_cast<std::size_t>(k), 4);
          }
          quads[k] = load_32(quad);
        }
        Format::Codes::store(quads, at + Format::Scales::kBlockBytes);
        at += PanelWalk<Format>::kBlockBytes;
      }
    }
  }
}
