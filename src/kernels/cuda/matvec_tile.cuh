#pragma once

// Tiles of coded weights: how they lie in a stage, how a warp copies them there, and how it multiplies them. A tile has
// 8 or 16 rows and some columns. It consists of *sub-tiles* of 8 rows and 8 groups (256 columns), whose scales are one
// scale tile. A sub-tile is multiplied on tensor cores, whose instruction has 16 rows, 8 columns and 32 bytes between
// them:
//   rows g and g + 8    are the first and the last four groups of row g of the sub-tile
//   bytes of lane c     (of the four lanes that share a row) are codes of groups c and c + 4, eight at a time
//   column n            has the activations of group n where the bytes are of that group, and zeros elsewhere
// So each result is the sum of a single group, which has its own scale. Half of the results are not needed, but a lane
// has two that are, for groups 2c and 2c + 1 of row g, with a quarter of the instructions of four-byte dot products.

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/matvec_split.cuh"
#include "kernels/cuda/tile_dot.cuh"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

// ---- tiles in shared memory

inline constexpr std::uint32_t kTileWarps = 8;  ///< of a block
inline constexpr std::uint32_t kSubTileGroups = kScaleTileGroups;
inline constexpr int kSubTileRows = kScaleTileRows;
inline constexpr int kTileRingBytes = 13440;  ///< of the ring of a warp, at most

/// A tile in a stage: rows of codes, rows of high bits, then scales. kGrouped: dtypes with scales for groups. kSingle:
/// a warp has one tile of a tile row and keeps its activations in registers. Otherwise it loads activations for every
/// tile; where that takes too many instructions, tiles have more rows and fewer columns, though memory prefers long
/// rows. kBatch: for matvec_batch.cuh, whose lanes read a word or two of a group.
template <class Form, bool kGrouped, bool kSingle, bool kBatch = false>
struct TileLayout {
  using Codes = typename Form::Codes;
  using Scales = typename Form::Scales;
  /// Sub-tiles of a tile: enough for whole cache lines of codes, and few enough for several stages in a ring.
  static constexpr int kSubTiles = Codes::kBytes == 32 ? 1 : Codes::kBytes == 4 ? 4 : 2;
  static constexpr int kDown = !kSingle && CodeDot<Codes>::kIsSlow ? 2 : 1;  ///< sub-tiles one below the other
  static constexpr int kAcross = kSubTiles / kDown;                          ///< and side by side
  static constexpr int kRows = kDown * kSubTileRows, kGroups = kAcross * kSubTileGroups;
  static constexpr int kCodeRow = kGroups * Codes::kBytes, kHighRow = kGroups * Codes::kHighBytes;
  static constexpr int kScaleTileBytes = ScaleTile<Scales>::kBytes;
  static constexpr int kScaleRow = kGroups * 4;  ///< scales of groups of dtypes, one row of a tile
  static constexpr int kScales = kGrouped ? kRows * kScaleRow : kSubTiles * kScaleTileBytes;
  /// Rows are padded so that lanes which read together use different banks. Where lanes read 16 bytes each,
  /// neighbouring 64 bytes (16 with 8-bit codes) are swapped in every other row instead.
  static constexpr int kSwizzle = kBatch ? 0 : Codes::kBytes == 32 ? 16 : Codes::kBytes == 16 ? 64 : 0;
  static constexpr int kBatchPad = Codes::kBytes == 32 ? 32 : 16;
  static constexpr int kCodeStride = kCodeRow + (kBatch ? kBatchPad : kSwizzle == 0 ? 4 * Codes::kBytes : 0);
  static constexpr int kHighStride = kHighRow + 4 * Codes::kHighBytes;
  static constexpr int kHighAt = kRows * kCodeStride, kScalesAt = kHighAt + kRows * kHighStride;
  static constexpr int kBytes = kScalesAt + kScales;
  /// Stages of a ring: enough to keep memory busy and no more, since activations are loaded after them. Those of
  /// several tokens take room too.
  static constexpr int kWantedBytes = kBatch ? 4096 : 6144;
  static constexpr int kMost = kTileRingBytes / kBytes;
  static constexpr int kEnough = std::min(5, (kWantedBytes + kBytes - 1) / kBytes + 1);
  static constexpr int kStages = std::min(kMost, kEnough);
  static_assert(kStages >= 3 && kScalesAt % 16 == 0 && kBytes % 16 == 0 && kRows <= static_cast<int>(kMostTileRows));

  IMAGO_HD static std::uint32_t tiles(const Planes& p) noexcept { return (p.groups + kGroups - 1) / kGroups; }
  /// Distance of the scales of neighbouring tiles in device memory. With kGrouped, 1, 2 or 4 groups share a scale.
  IMAGO_HD static std::uint32_t scale_bytes(const Planes& p) noexcept {
    return kGrouped ? 4 * (kGroups >> p.scale_shift) : kScales;
  }
};

/// Copies the tiles of a warp into its ring. The last tile of a tile row may reach past the end of the rows, and the
/// last tile row past the last row; nobody uses those bytes.
template <class Form, bool kGrouped, bool kSingle, bool kBatch = false>
class TileLoader {
 public:
  using S = TileLayout<Form, kGrouped, kSingle, kBatch>;

  __device__ __forceinline__ TileLoader(const MatVecArgs& args, const MatVecSplit& split, const WarpPlace& place,
                                        std::uint32_t lane) {
    const std::uint32_t row = lane / kRowLanes, c = lane % kRowLanes;
    tiles_ = place.tiles(split);
    keep(tiles_);
    codes_to_ = lane / kCodeLanes * S::kCodeStride + (lane % kCodeLanes * 16 ^ lane / kCodeLanes % 2 * S::kSwizzle);
    keep(codes_to_);
    if constexpr (S::kHighRow > 0) {
      high_to_ = S::kHighAt + row * S::kHighStride + c * kHighBytes;
      keep(high_to_);
    }
    if constexpr (S::kScales > 0) {
      scales_to_ = S::kScalesAt + (kGrouped ? row * S::kScaleRow + c * 4 : lane * 16);
      keep(scales_to_);
    }
    open(args, split, place, lane);
  }
  /// Tiles of a tile row that are the warp's.
  __device__ __forceinline__ std::uint32_t tiles() const { return tiles_; }
  /// Copies the next tile, if there is one.
  __device__ __forceinline__ void copy_next(const MatVecArgs& args, const MatVecSplit& split, const WarpPlace& place,
                                            std::uint32_t lane, std::uint32_t to) {
    if (tile_rows_left_ > 0) {
      copy(args, split, lane, to);
      if (kSingle || ++tile_ == tiles_) {
        tile_ = 0;
        move(split.jumps);
        if (!kSingle && tiles_ != split.warp_tiles) move(split.tile_steps);  // this warp has one tile less than others
        if (--tile_rows_left_ == 0) open(args, split, place, lane);
      } else {
        move(split.tile_steps);
      }
    }
    end_copies();  // commits empty groups too: wait_for_copies counts groups
  }

 private:
  /// Eight lanes copy a whole line of 128 bytes of codes, where rows are that long.
  static constexpr int kCodeLanes = S::kCodeRow >= 128 ? 8 : 4, kCodeRows = 32 / kCodeLanes;
  static constexpr int kRowLanes = 32 / S::kRows;  // for high bits and scales
  static constexpr int kHighBytes = 16;
  static constexpr std::uint32_t kScaleTileLanes = S::kSubTiles * S::kScaleTileBytes / 16;  // contiguous: a copy each
  static_assert(kScaleTileLanes <= 32);

  __device__ __forceinline__ void open(const MatVecArgs& args, const MatVecSplit& split, const WarpPlace& place,
                                       std::uint32_t lane) {
    walk_.next(args, split, place, tile_rows_left_, [&](const Planes& p, std::uint32_t first) {
      const std::uint32_t tile = place.column;
      const auto begin = [&](const std::byte* base, int plane, std::uint32_t row, std::uint32_t offset) {
        return base + static_cast<std::size_t>(first * S::kRows + row) * split.row_bytes[plane] + offset;
      };
      codes_ = begin(p.codes, 0, lane / kCodeLanes, tile * S::kCodeRow + lane % kCodeLanes * 16);
      const std::uint32_t row = lane / kRowLanes, c = lane % kRowLanes;
      if constexpr (S::kHighRow > 0) high_ = begin(p.high, 1, row, tile * S::kHighRow + c * kHighBytes);
      if constexpr (kGrouped) {
        const std::byte* const scales = reinterpret_cast<const std::byte*>(p.row_scales);
        scales_ = begin(scales, 2, row, tile * S::scale_bytes(args.products[0].planes) + c * 4);
      } else if constexpr (S::kScales > 0) {
        scales_ = begin(p.scales, 2, 0, tile * S::kScales + lane * 16);
      }
    });
  }
  template <class Bytes>
  __device__ __forceinline__ void move(const Bytes (&bytes)[3]) {
    codes_ += bytes[0];
    if constexpr (S::kHighRow > 0) high_ += bytes[1];
    if constexpr (S::kScales > 0) scales_ += bytes[2];
  }
  __device__ __forceinline__ void copy(const MatVecArgs& args, const MatVecSplit& split, std::uint32_t lane,
                                       std::uint32_t to) const {
#pragma unroll
    for (int r = 0; r < S::kRows; r += kCodeRows) {
      const std::byte* const from = codes_ + r * static_cast<std::size_t>(split.row_bytes[0]);
#pragma unroll
      for (int i = 0; i < S::kCodeRow; i += 16 * kCodeLanes) {
        copy_async<16>(to + codes_to_ + (r * S::kCodeStride + i), from + i);
      }
    }
#pragma unroll
    for (int i = 0; i < S::kHighRow; i += kRowLanes * kHighBytes) copy_async<kHighBytes>(to + high_to_ + i, high_ + i);
    if constexpr (kGrouped) {
      const std::uint32_t count = S::kGroups >> args.products[0].planes.scale_shift;
#pragma unroll
      for (std::uint32_t i = 0; i < S::kGroups; i += kRowLanes) {
        if (lane % kRowLanes + i < count) copy_async<4>(to + scales_to_ + 4 * i, scales_ + 4 * i);
      }
    } else if constexpr (S::kScales > 0) {
      if (lane < kScaleTileLanes) copy_async<16>(to + scales_to_, scales_);
    }
  }

  std::uint32_t tile_rows_left_ = 0, tile_ = 0, tiles_;  // tiles of a tile row: copied, and all
  MatrixWalk walk_;
  std::uint32_t codes_to_, high_to_, scales_to_;
  const std::byte* codes_;
  const std::byte* high_;
  const std::byte* scales_;
};

/// Whether each warp of a block has one tile of a tile row at most.
template <class Form, bool kGrouped>
bool has_single_tiles(const MatVecArgs& args) {
  // Scale tiles lie in pairs where tiles have 16 rows: see scale_tile_pairs.
  using Codes = typename Form::Codes;
  using Single = TileLayout<Form, kGrouped, true>;
  static_assert(CodeDot<Codes>::kIsSlow == kAreLevels<Codes>);
  static_assert(!kAreLevels<Codes> || Single::kGroups * kTileWarps == kShortTileGroups);
  return Single::tiles(args.products[0].planes) <= kTileWarps;
}

/// What tiles of layout S require of a split.
template <class Form, bool kGrouped, class S>
SplitNeeds tile_needs(const MatVecArgs& args, const SplitNeeds& matrices) {
  SplitNeeds needs = matrices;
  const Planes& first = args.products[0].planes;
  needs.row_tiles = S::tiles(first);
  needs.takes_turns = true;
  needs.rows_per_tile = S::kRows;
  needs.ring_bytes = S::kStages * S::kBytes;
  needs.row_bytes[0] = first.stride * Form::Codes::kBytes;
  needs.row_bytes[1] = first.stride * Form::Codes::kHighBytes;
  needs.row_bytes[2] =
      kGrouped ? first.row_scale_count * 4 : first.scale_tiles.width * (S::kScaleTileBytes / kScaleTileRows);
  const std::uint32_t tile_bytes[] = {S::kCodeRow, S::kHighRow, S::scale_bytes(first)};
  std::copy(std::begin(tile_bytes), std::end(tile_bytes), needs.tile_bytes);
  return needs;
}

// ---- scales

/// Reads the scales of tiles in stages of layout S: a lane those of row lane / 4 of a sub-tile, groups 2c and 2c + 1.
template <class Form, bool kGrouped, class S>
class TileScales {
 public:
  using Scales = typename Form::Scales;

  __device__ __forceinline__ TileScales(const MatVecArgs& args, const MatVecSplit& split, const WarpPlace& place,
                                        std::uint32_t lane)
      : lane_(lane) {
    const std::uint32_t row = lane / 4, c = lane % 4;
    const bool has_end = (split.row_tiles - 1) % split.column_warps == place.column;
    end_tile_ = has_end ? place.tiles(split) - 1 : ~0u;
    keep(end_tile_);
    if constexpr (kGrouped) {
      const Planes& p = args.products[0].planes;
      whole_ = offsets(p, S::kGroups);
      end_ = offsets(p, p.groups - (split.row_tiles - 1) * S::kGroups);
    } else {
      using Tile = ScaleTile<Scales>;
      const std::uint32_t of_row = S::kScalesAt + row * Tile::kRow;
      scales_at_ = of_row + 2 * c * Scales::kBytes;
      supers_at_ = Scales::kHidesSuper ? of_row : S::kScalesAt + Tile::kSupersAt + row * Scales::kSuperBytes;
      own_bytes_ = 0x10 + 0x22 * c;
      for (std::uint32_t* number : {&scales_at_, &supers_at_, &own_bytes_}) keep(*number);
    }
  }

  /// The tile whose activations are read next, among those of the warp in a tile row.
  __device__ __forceinline__ void go_to(std::uint32_t tile) {
    if constexpr (kGrouped) now_ = tile == end_tile_ ? end_ : whole_;
  }
  __device__ __forceinline__ PairBits load(std::uint32_t stage, int down, int across) const {
    PairBits bits;
    if constexpr (kGrouped) {
      const std::uint32_t row = stage + down * (kSubTileRows * S::kScaleRow);
#pragma unroll
      for (int u = 0; u < 2; ++u) bits.rows[u] = __uint_as_float(load_shared_small<4>(row + now_.scale[across][u]));
    } else if constexpr (S::kScaleTileBytes > 0) {
      load_bits(stage + (down * S::kAcross + across) * S::kScaleTileBytes, bits);
    }
    return bits;
  }

 private:
  /// Where a lane finds the scales of its groups in a stage.
  struct Offsets {
    std::uint32_t scale[S::kAcross][2];
  };
  /// Offsets for a tile with this many groups. What follows them might be infinite, so later groups, whose activations
  /// are zeros, read the first scale instead.
  __device__ __forceinline__ Offsets offsets(const Planes& p, std::uint32_t groups) const {
    const std::uint32_t row = lane_ / 4, scales_at = S::kScalesAt + row * S::kScaleRow;
    Offsets made{};
#pragma unroll
    for (int across = 0; across < S::kAcross; ++across) {
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const std::uint32_t own = across * kSubTileGroups + 2 * (lane_ % 4) + u;
        made.scale[across][u] = scales_at + (own < groups ? (own >> p.scale_shift) * 4 : 0);
        keep(made.scale[across][u]);
      }
    }
    return made;
  }
  /// Loads the scales of groups 2c and 2c + 1 from a scale tile.
  __device__ __forceinline__ void load_bits(std::uint32_t scale_tile, PairBits& bits) const {
    if constexpr (Scales::kHidesSuper) {
      load_shared<Scales::kSuperWords>(scale_tile + supers_at_, bits.supers);
    } else if constexpr (Scales::kSuperBytes > 0) {
      bits.supers[0] = load_shared_small<Scales::kSuperBytes>(scale_tile + supers_at_);
    }
    if constexpr (Scales::kHidesSuper && Scales::kBytes == 1) {  // they are in `supers` already
      bits.words[0] = pick_bytes(bits.supers[0], bits.supers[1], own_bytes_);
    } else if constexpr (Scales::kBytes == 4) {
      load_shared<2>(scale_tile + scales_at_, bits.words);
    } else if constexpr (Scales::kBytes > 0) {
      bits.words[0] = load_shared_small<2 * Scales::kBytes>(scale_tile + scales_at_);
    }
  }

  std::uint32_t lane_;
  std::uint32_t end_tile_;               // the last tile of a row, which may reach past its end, if it is the warp's
  std::uint32_t scales_at_, supers_at_;  // in the first scale tile of a stage
  std::uint32_t own_bytes_;              // selects one-byte scales 2c and 2c + 1
  Offsets whole_, end_, now_;
};

// ---- multiplication

/// Accumulates a CodeDot on tensor cores.
struct TileSums {
  std::int32_t c[4] = {};

  template <bool kSigned>
  __device__ __forceinline__ void add(const WordPair& first, const WordPair& second, const std::uint32_t (&x)[8],
                                      int i) {
    multiply_tile<kSigned>(c, {first.group[0], first.group[1], second.group[0], second.group[1]},
                           {x[2 * i], x[2 * i + 1]});
  }
  __device__ __forceinline__ void times_plus(std::int32_t factor, const TileSums& others) {
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] = c[i] * factor + others.c[i];
  }
};

/// Multiplies tiles: a lane's share of the activations, and of every tile.
template <class Form, bool kGrouped, bool kSingle>
class TileLane {
 public:
  using S = TileLayout<Form, kGrouped, kSingle>;
  using Codes = typename Form::Codes;
  using Scales = typename Form::Scales;
  using Scaling = ScaledSums<Form>;
  static constexpr int kHalves = Scaling::kHalves, kXWords = Scaling::kXWords;
  static constexpr bool kDecodesAhead = CodeDot<Codes>::kIsSlow;
  static constexpr bool kHasSum = Scaling::kHasSum;
  /// Activations of 256 columns in shared memory: codes, then scale and sums of each group.
  static constexpr std::uint32_t kXAt = kSubTileGroups * 32, kSubTileXBytes = kXAt + kSubTileGroups * kXWords * 4;
  static constexpr std::uint32_t kXBytes = S::kAcross * kSubTileXBytes;
  /// After them 32 bytes of zeros for lanes without activations, in other banks than what is read at the same time.
  static constexpr std::uint32_t kZerosAt = 16, kZeroBytes = kZerosAt + 32;

  /// Computes what does not depend on the previous kernel. `x`: shared memory for the activations of the warp.
  __device__ __forceinline__ TileLane(const MatVecArgs& args, const MatVecSplit& split, const WarpPlace& place,
                                      std::uint32_t lane, std::uint32_t x)
      : is_of_first_(lane % 4 < 2), lane_(lane), x_at_(x), scales_(args, split, place, lane) {
    const std::uint32_t row = lane / 4, c = lane % 4;
    codes_at_ = row * S::kCodeStride + c * Codes::kBytes + row % 2 * S::kSwizzle;
    other_at_ = row * S::kCodeStride + c * Codes::kBytes + (1 - row % 2) * S::kSwizzle;
    high_at_ = S::kHighAt + row * S::kHighStride + c * Codes::kHighBytes;
    const std::uint32_t zeros = x + split.warp_tiles * kXBytes + kZerosAt;
    const bool has_x = row % 4 == c;
    words_at_ = has_x ? x + row * 32 : zeros;
    words_step_ = has_x ? kXBytes : 0;
    for (std::uint32_t* number : {&codes_at_, &other_at_, &high_at_, &words_at_, &words_step_}) keep(*number);
    if (lane < 8) store_shared(zeros + lane * 4, 0);
    codes_to_ = x + row * 32 + CodeDot<Codes>::place(2 * c) * 4;
    entry_to_ = x + kXAt + row * (kXWords * 4);
    keep(codes_to_), keep(entry_to_);
  }

  /// Stores activations of 256 columns in shared memory: this lane has words 2 · (lane % 4) and the next one of group
  /// lane / 4, its scale, and what ScaledSums needs besides. Sub-tiles are counted through all tiles of the warp.
  __device__ __forceinline__ void store_activations(const MatVecArgs& args, std::uint32_t sub_tile, uint2 words,
                                                    float2 scale) const {
    const std::uint32_t c = lane_ % 4, at = codes_to_ + sub_tile * kSubTileXBytes;
    if constexpr (CodeDot<Codes>::kInOrder) {
      store_shared(at, words.x, words.y);
    } else {
      store_shared(at, words.x);
      store_shared(at + (CodeDot<Codes>::place(1) - CodeDot<Codes>::place(0)) * 4, words.y);
    }
    const std::uint32_t entry = entry_to_ + sub_tile * kSubTileXBytes;
    const float zero = Form::zero(args.products[0].planes);
    const std::uint32_t x_scale = __float_as_uint(scale.x * Scaling::unit());
    if constexpr (!kHasSum) {
      if (c == 0) store_shared(entry, x_scale);
    } else if constexpr (kHalves == 1) {
      if (c == 0) store_shared(entry, x_scale, Scaling::sum_bits(scale.y, 0, zero));
    } else {
      std::int32_t sum = dot4(0x01010101u, words.x, dot4(0x01010101u, words.y, 0));
      sum += __shfl_xor_sync(~0u, sum, 1);
      const std::uint32_t bits = Scaling::sum_bits(times(scale.x, static_cast<float>(sum)), sum, zero);
      if (c == 0) store_shared(entry, x_scale, bits);
      if (c == 2) store_shared(entry + 8, bits);
    }
  }

  /// Loads the activations of a tile from shared memory.
  __device__ __forceinline__ void load_activations(std::uint32_t tile) {
    const std::uint32_t words = words_at_ + tile * words_step_, next = words_step_ / S::kAcross;
    const std::uint32_t scales = x_at_ + kXAt + lane_ % 4 * (2 * kXWords * 4) + tile * kXBytes;
#pragma unroll
    for (int across = 0; across < S::kAcross; ++across) {
      load_shared<8>(words + across * next, x_[across]);
      load_shared<2 * kXWords>(scales + across * kSubTileXBytes, &x_scales_[across][0][0]);
    }
    scales_.go_to(tile);
  }

  /// Decoded codes of the first tile: decoded while activations are being loaded. There are no registers for a second.
  struct Ahead {
    CodeWords<Codes> sub_tiles[S::kDown][S::kAcross];
  };
  __device__ __forceinline__ void decode(std::uint32_t stage, Ahead& ahead) const {
#pragma unroll
    for (int i = 0; i < S::kSubTiles; ++i) {
      const int down = i / S::kAcross, across = i % S::kAcross;
      ahead.sub_tiles[down][across] = CodeWords<Codes>(load_codes(stage, down, across));
    }
  }

  /// Adds the products of this lane: its row of each sub-tile, groups 2c and 2c + 1. `stage`: address in shared memory.
  __device__ __forceinline__ void add_products(std::uint32_t stage, float (&results)[S::kDown]) const {
    add_sub_tiles(stage, results, [&](int down, int across, TileSums(&dots)[kHalves]) {
      CodeDot<Codes>::template dots<kHalves>(load_codes(stage, down, across), x_[across], dots);
    });
  }
  __device__ __forceinline__ void add_products(std::uint32_t stage, const Ahead& ahead,
                                               float (&results)[S::kDown]) const {
    add_sub_tiles(stage, results, [&](int down, int across, TileSums(&dots)[kHalves]) {
      ahead.sub_tiles[down][across].dots(x_[across], dots);
    });
  }

 private:
  template <class Dots>
  __device__ __forceinline__ void add_sub_tiles(std::uint32_t stage, float (&results)[S::kDown], Dots dots_of) const {
#pragma unroll
    for (int down = 0; down < S::kDown; ++down) {
#pragma unroll
      for (int across = 0; across < S::kAcross; ++across) {
        TileSums dots[kHalves];
        dots_of(down, across, dots);
        add_sub_tile(stage, down, across, dots, results[down]);
      }
    }
  }

  __device__ __forceinline__ void add_sub_tile(std::uint32_t stage, int down, int across,
                                               const TileSums (&dots)[kHalves], float& result) const {
    const PairBits bits = scales_.load(stage, down, across);
    std::int32_t sums[2][kHalves];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) sums[u][half] = is_of_first_ ? dots[half].c[u] : dots[half].c[2 + u];
    }
    result = Scaling::add(bits, sums, x_scales_[across], result);
  }

  __device__ __forceinline__ CodePair<Codes> load_codes(std::uint32_t stage, int down, int across) const {
    CodePair<Codes> pair;
    constexpr int kQuad = 4 * Codes::kBytes;  // bytes of four groups
    const std::uint32_t codes = stage + down * (kSubTileRows * S::kCodeStride);
    const std::uint32_t high = stage + down * (kSubTileRows * S::kHighStride);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const int quad = 2 * across + g;
      if constexpr (S::kSwizzle == 16) {
        load_shared<4>(codes + codes_at_ + kQuad * quad, pair.codes[g]);
        load_shared<4>(codes + other_at_ + kQuad * quad, pair.codes[g] + 4);
      } else if constexpr (S::kSwizzle == 64) {
        load_shared<4>(codes + (g == 0 ? codes_at_ : other_at_) + 2 * kQuad * across, pair.codes[g]);
      } else {
        load_shared<Codes::kBytes / 4>(codes + codes_at_ + kQuad * quad, pair.codes[g]);
      }
      if constexpr (S::kHighRow > 0) {
        load_shared<Codes::kHighBytes / 4>(high + high_at_ + 4 * Codes::kHighBytes * quad, pair.high[g]);
      }
    }
    return pair;
  }

  bool is_of_first_;  // whether groups 2c, 2c + 1 are among the first four
  std::uint32_t lane_, x_at_, words_at_, words_step_;
  std::uint32_t codes_to_, entry_to_;            // where this lane stores its activations, and their scales
  std::uint32_t codes_at_, other_at_, high_at_;  // in a stage
  TileScales<Form, kGrouped, S> scales_;
  std::uint32_t x_[S::kAcross][8];
  std::uint32_t x_scales_[S::kAcross][2][kXWords];  // for groups 2c and 2c + 1
};

}  // namespace imago::kernels::cuda
