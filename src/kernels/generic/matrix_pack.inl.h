// From the canonical layout, row by row, to panels of planes.

/// The scale of a weight; a stored 0 acts as 1.
inline float scale_of(const MatrixSource& s, std::size_t row, std::size_t column) noexcept {
  const float scale = s.scales == nullptr ? 1.0f : s.scales[(s.first + row * s.cols + column) / s.scale_group];
  return scale == 0 ? 1.0f : scale;
}

/// 256 columns of one row: unsigned codes, and the scales as their layout stores them.
struct RowPiece {
  std::uint8_t codes[256];
  std::uint8_t half_scales[8][2];  // per 32 columns, or [0] for all
  std::uint8_t half_offsets[8][2];
  std::uint8_t subs[16];  // small integers or small floats, per group
  std::uint8_t lows[16];
  float scales[8];  // float32, per 32 columns
};

inline void copy_half(PackedHalf half, std::uint8_t (&to)[2]) noexcept {
  to[0] = half.bytes[0];
  to[1] = half.bytes[1];
}

/// Codes of a block as unsigned numbers.
template <class Block>
inline void unsigned_codes(const Block& block, std::uint8_t* codes) noexcept {
  using Levels = typename RunFormatOf<Block>::Levels;
  Expanded e;
  BlockCodec<Block>::expand(block, e);
  if constexpr (Levels::kIsTable) {
    struct Inverse {
      std::uint8_t code[256] = {};
      constexpr Inverse() noexcept {
        for (int i = 15; i >= 0; --i)
          code[static_cast<std::uint8_t>(static_cast<int>(Levels::level(i)))] = static_cast<std::uint8_t>(i);
      }
    };
    static constexpr Inverse kInverse{};
    for (int i = 0; i < Block::kValues; ++i) codes[i] = kInverse.code[static_cast<std::uint8_t>(e.codes[i])];
  } else {
    for (int i = 0; i < Block::kValues; ++i) codes[i] = static_cast<std::uint8_t>(e.codes[i] + Levels::zero);
  }
}

// ---- Scales of each block type, block number `i` of the piece

inline void take_scales(const Q4_0& b, int i, RowPiece& p) noexcept { copy_half(b.scale, p.half_scales[i]); }
inline void take_scales(const Q5_0& b, int i, RowPiece& p) noexcept { copy_half(b.scale, p.half_scales[i]); }
inline void take_scales(const Q8_0& b, int i, RowPiece& p) noexcept { copy_half(b.scale, p.half_scales[i]); }
inline void take_scales(const IQ4_NL& b, int i, RowPiece& p) noexcept { copy_half(b.scale, p.half_scales[i]); }
inline void take_scales(const TQ1_0& b, int, RowPiece& p) noexcept { copy_half(b.scale, p.half_scales[0]); }
inline void take_scales(const TQ2_0& b, int, RowPiece& p) noexcept { copy_half(b.scale, p.half_scales[0]); }
inline void take_scales(const MXFP4& b, int i, RowPiece& p) noexcept { p.subs[i] = b.exponent; }

/// A minimum is added, an offset subtracted: flip the sign bit.
template <class Block>
inline void take_scale_and_min(const Block& b, int i, RowPiece& p) noexcept {
  copy_half(b.scale, p.half_scales[i]);
  copy_half(b.min, p.half_offsets[i]);
  p.half_offsets[i][1] ^= 0x80;
}
inline void take_scales(const Q4_1& b, int i, RowPiece& p) noexcept { take_scale_and_min(b, i, p); }
inline void take_scales(const Q5_1& b, int i, RowPiece& p) noexcept { take_scale_and_min(b, i, p); }

inline void take_scales(const NVFP4& b, int i, RowPiece& p) noexcept {
  for (int j = 0; j < 4; ++j) {
    const std::uint8_t code = b.scales[j];
    p.subs[4 * i + j] = code == 0x7F ? 0 : code & 0x7F;
  }
}
inline void take_scales(const Q2_K& b, int, RowPiece& p) noexcept {
  copy_half(b.scale, p.half_scales[0]);
  copy_half(b.min, p.half_offsets[0]);
  for (int j = 0; j < 16; ++j) {
    p.subs[j] = b.scales[j] & 15;
    p.lows[j] = b.scales[j] >> 4;
  }
}
inline void take_scales(const Q3_K& b, int, RowPiece& p) noexcept {
  copy_half(b.scale, p.half_scales[0]);
  for (int j = 0; j < 16; ++j) {
    const int low = (b.scales[j % 8] >> (j / 8 * 4)) & 15;
    const int high = (b.scales[8 + j % 4] >> (j / 4 * 2)) & 3;
    p.subs[j] = static_cast<std::uint8_t>((low | (high << 4)) - 32);
  }
}
template <class Block>
inline void take_six_bit_scales(const Block& b, RowPiece& p) noexcept {
  copy_half(b.scale, p.half_scales[0]);
  copy_half(b.min, p.half_offsets[0]);
  for (int j = 0; j < 4; ++j) {
    p.subs[j] = b.scales[j] & 63;
    p.lows[j] = b.scales[j + 4] & 63;
    p.subs[j + 4] = static_cast<std::uint8_t>((b.scales[j + 8] & 15) | (b.scales[j] >> 6 << 4));
    p.lows[j + 4] = static_cast<std::uint8_t>((b.scales[j + 8] >> 4) | (b.scales[j + 4] >> 6 << 4));
  }
}
inline void take_scales(const Q4_K& b, int, RowPiece& p) noexcept { take_six_bit_scales(b, p); }
inline void take_scales(const Q5_K& b, int, RowPiece& p) noexcept { take_six_bit_scales(b, p); }
inline void take_scales(const Q6_K& b, int, RowPiece& p) noexcept {
  copy_half(b.scale, p.half_scales[0]);
  for (int j = 0; j < 16; ++j) p.subs[j] = static_cast<std::uint8_t>(b.scales[j]);
}
inline void take_scales(const IQ4_XS& b, int, RowPiece& p) noexcept {
  copy_half(b.scale, p.half_scales[0]);
  for (int j = 0; j < 8; ++j) {
    const int low = (b.scales_low[j / 2] >> (j % 2 * 4)) & 15;
    const int high = (b.scales_high[j / 4] >> (2 * (j % 4))) & 3;
    p.subs[j] = static_cast<std::uint8_t>((low | (high << 4)) - 32);
  }
}

/// Columns [first, first + 256) of a row, fewer at its end; what is missing stays zero.
template <class T>
inline void take_piece(const MatrixSource& s, std::size_t row, std::size_t first, RowPiece& piece) noexcept {
  const std::size_t count = s.cols - first < 256 ? s.cols - first : 256;
  if constexpr (requires { T::kValues; }) {
    const T* blocks = reinterpret_cast<const T*>(s.packed) + (s.first + row * s.cols + first) / T::kValues;
    for (std::size_t i = 0; i < count / T::kValues; ++i) {
      unsigned_codes(blocks[i], piece.codes + i * T::kValues);
      take_scales(blocks[i], static_cast<int>(i), piece);
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
    for (std::size_t b = 0; b * 32 < count; ++b) piece.scales[b] = scale_of(s, row, first + b * 32) * kPackedUnit<T>;
  }
}

// ---- Scales of a panel, as matrix_scales.inl.h reads them

template <bool kOffsets>
inline void put_scales(HalfScales<kOffsets>, const RowPiece& p, int lane, std::byte*, std::byte* block,
                       int b) noexcept {
  __builtin_memcpy(block + 2 * lane, p.half_scales[b], 2);
  if (kOffsets) __builtin_memcpy(block + 2 * kLanes + 2 * lane, p.half_offsets[b], 2);
}
template <int kGroup, bool kSigned, bool kOffsets>
inline void put_scales(SuperScales<kGroup, kSigned, kOffsets>, const RowPiece& p, int lane, std::byte* super,
                       std::byte* block, int b) noexcept {
  using Layout = SuperScales<kGroup, kSigned, kOffsets>;
  constexpr int kGroups = 32 / kGroup;
  __builtin_memcpy(super + 2 * lane, p.half_scales[0], 2);
  if (kOffsets) __builtin_memcpy(super + 2 * kLanes + 2 * lane, p.half_offsets[0], 2);
  for (int g = 0; g < kGroups; ++g) {
    std::byte* at = block + g * Layout::kGroupBytes + lane;
    *at = static_cast<std::byte>(p.subs[b * kGroups + g]);
    if (kOffsets) at[kLanes] = static_cast<std::byte>(p.lows[b * kGroups + g]);
  }
}
inline void put_scales(WideScales, const RowPiece& p, int lane, std::byte* super, std::byte*, int) noexcept {
  __builtin_memcpy(super + 2 * lane, p.half_scales[0], 2);
}
inline void put_scales(ExponentScales, const RowPiece& p, int lane, std::byte*, std::byte* block, int b) noexcept {
  block[lane] = static_cast<std::byte>(p.subs[b]);
}
inline void put_scales(SmallFloatScales, const RowPiece& p, int lane, std::byte*, std::byte* block, int b) noexcept {
  for (int g = 0; g < 2; ++g) block[g * kLanes + lane] = static_cast<std::byte>(p.subs[2 * b + g]);
}
inline void put_scales(FloatScales layout, const RowPiece& p, int lane, std::byte* super, std::byte*, int b) noexcept {
  if (layout.blocks_per_scale == 0) return;
  __builtin_memcpy(super + (b / layout.blocks_per_scale * kLanes + lane) * 4, &p.scales[b], 4);
}

template <class T>
void pack_planes(const PackArgs& args) noexcept {
  using Format = RunFormatOf<T>;
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
      RowPiece pieces[kLanes] = {};
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
          quads[k] = load_quads(quad);
        }
        Format::Codes::store(quads, at + Format::Scales::kBlockBytes);
        at += PanelWalk<Format>::kBlockBytes;
      }
    }
  }
}
