#pragma once

// Tiles of coded weights on their way through shared memory: where they lie in the ring of a warp, and which come next.

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/code_dot.cuh"
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/matvec_outputs.cuh"
#include "kernels/cuda/matvec_ring.cuh"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

inline constexpr std::uint32_t kTileWarps = 8;   ///< of a block
inline constexpr std::uint32_t kPartGroups = 8;  ///< 256 columns are a part,
inline constexpr int kPartRows = 8;              ///< of eight rows
inline constexpr int kTileRingBytes = 13440;     ///< of a warp, at most

/// A tile in the ring of a warp. kGrouped: dtypes with scales for groups. kSingle: warps have one piece of a row, whose
/// activations they keep in registers. Others load those for every tile: where instructions are too many, these have
/// more rows and fewer columns. Memory likes long rows better.
template <class Form, bool kGrouped, bool kSingle>
struct TileSlice {
  using Codes = typename Form::Codes;
  using Scales = typename Form::Scales;
  /// Parts of a tile: enough columns for whole lines of memory, and few enough for several tiles in a ring.
  static constexpr int kAll = Codes::kBytes == 32 ? 1 : Codes::kBytes == 4 ? 4 : 2;
  static constexpr int kHeight = !kSingle && CodeDot<Codes>::kIsSlow ? 2 : 1;  ///< one below the other,
  static constexpr int kParts = kAll / kHeight;                                ///< and in a row
  static constexpr int kRows = kHeight * kPartRows, kGroups = kParts * kPartGroups;
  static constexpr int kCodeRow = kGroups * Codes::kBytes, kHighRow = kGroups * Codes::kHighBytes;
  static constexpr int kPatch = ScalePatch<Scales>::kBytes;
  static constexpr int kScaleRow = kGroups * 4;  ///< of numbers for groups, one each
  static constexpr int kScales = kGrouped ? kRows * kScaleRow : kAll * kPatch;
  /// From row to row: so much more that lanes which read together find different banks. Where they read 16 bytes each,
  /// neighbours of 64 bytes, or of 16 in 8-bit codes, change places in every other row instead.
  static constexpr int kExchanged = Codes::kBytes == 32 ? 16 : Codes::kBytes == 16 ? 64 : 0;
  static constexpr int kCodeStride = kCodeRow + (kExchanged == 0 ? 4 * Codes::kBytes : 0);
  static constexpr int kHighStride = kHighRow + 4 * Codes::kHighBytes;
  static constexpr int kHighAt = kRows * kCodeStride, kScalesAt = kHighAt + kRows * kHighStride;
  static constexpr int kBytes = kScalesAt + kScales;
  /// In a ring: enough for memory to be busy, and no more, for activations wait behind them.
  static constexpr int kMost = kTileRingBytes / kBytes, kEnough = std::min(5, (6144 + kBytes - 1) / kBytes + 1);
  static constexpr int kCount = std::min(kMost, kEnough);
  static_assert(kCount >= 3 && kScalesAt % 16 == 0 && kBytes % 16 == 0 && kRows <= static_cast<int>(kMostTileRows));

  IMAGO_HD static std::uint32_t pieces(const Planes& p) noexcept { return (p.groups + kGroups - 1) / kGroups; }
  /// From a piece of a tile to the next one, in memory. Groups with numbers of their own share them with up to three.
  IMAGO_HD static std::uint32_t scale_bytes(const Planes& p) noexcept {
    return kGrouped ? 4 * (kGroups >> p.scale_shift) : kScales;
  }
};

/// A team's tiles on their way into a warp's ring, piece by piece. The last piece of a row may reach past its end, into
/// what follows, and so may the last tile: nobody looks at that.
template <class Form, bool kGrouped, bool kSingle>
class TileFeed {
 public:
  using S = TileSlice<Form, kGrouped, kSingle>;

  __device__ __forceinline__ TileFeed(const MatVecArgs& args, const StreamPlan& plan, const WarpPlace& place,
                                      std::uint32_t lane) {
    const std::uint32_t row = lane / kRowLanes, c = lane % kRowLanes;
    pieces_ = place.pieces(plan);
    keep(pieces_);
    codes_to_ = lane / kCodeLanes * S::kCodeStride + (lane % kCodeLanes * 16 ^ lane / kCodeLanes % 2 * S::kExchanged);
    keep(codes_to_);
    if constexpr (S::kHighRow > 0) {
      high_to_ = S::kHighAt + row * S::kHighStride + c * kHighPiece;
      keep(high_to_);
    }
    if constexpr (S::kScales > 0) {
      scales_to_ = S::kScalesAt + (kGrouped ? row * S::kScaleRow + c * 4 : lane * 16);
      keep(scales_to_);
    }
    open(args, plan, place, lane);
  }
  /// Of a row, those of the warp.
  __device__ __forceinline__ std::uint32_t pieces() const { return pieces_; }
  /// Copies a piece of a tile, if there is one.
  __device__ __forceinline__ void copy_step(const MatVecArgs& args, const StreamPlan& plan, const WarpPlace& place,
                                            std::uint32_t lane, std::uint32_t to) {
    if (left_ > 0) {
      copy(args, plan, lane, to);
      if (kSingle || ++piece_ == pieces_) {
        piece_ = 0;
        move(plan.jumps);
        if (!kSingle && pieces_ != plan.warp_pieces) move(plan.piece_steps);  // from one piece less
        if (--left_ == 0) open(args, plan, place, lane);
      } else {
        move(plan.piece_steps);
      }
    }
    end_copies();  // empty ones too: waiting counts them
  }

 private:
  /// Codes are copied in whole lines of 128 bytes where rows have them, by eight lanes each.
  static constexpr int kCodeLanes = S::kCodeRow >= 128 ? 8 : 4, kCodeRows = 32 / kCodeLanes;
  static constexpr int kRowLanes = 32 / S::kRows;  // for the rest
  static constexpr int kHighPiece = 16;
  static constexpr std::uint32_t kPatchLanes = S::kAll * S::kPatch / 16;  // patches lie together: one copy for each
  static_assert(kPatchLanes <= 32);

  __device__ __forceinline__ void open(const MatVecArgs& args, const StreamPlan& plan, const WarpPlace& place,
                                       std::uint32_t lane) {
    walk_.next(args, plan, place, left_, [&](const Planes& p, std::uint32_t first) {
      const std::uint32_t piece = place.columns;
      const auto begin = [&](const std::byte* base, int plane, std::uint32_t row, std::uint32_t offset) {
        return base + static_cast<std::size_t>(first * S::kRows + row) * plan.row_bytes[plane] + offset;
      };
      codes_ = begin(p.codes, 0, lane / kCodeLanes, piece * S::kCodeRow + lane % kCodeLanes * 16);
      const std::uint32_t row = lane / kRowLanes, c = lane % kRowLanes;
      if constexpr (S::kHighRow > 0) high_ = begin(p.high, 1, row, piece * S::kHighRow + c * kHighPiece);
      if constexpr (kGrouped) {
        const std::byte* const scales = reinterpret_cast<const std::byte*>(p.row_scales);
        scales_ = begin(scales, 2, row, piece * S::scale_bytes(args.products[0].planes) + c * 4);
      } else if constexpr (S::kScales > 0) {
        scales_ = begin(p.scales, 2, 0, piece * S::kScales + lane * 16);
      }
    });
  }
  template <class Bytes>
  __device__ __forceinline__ void move(const Bytes (&bytes)[3]) {
    codes_ += bytes[0];
    if constexpr (S::kHighRow > 0) high_ += bytes[1];
    if constexpr (S::kScales > 0) scales_ += bytes[2];
  }
  __device__ __forceinline__ void copy(const MatVecArgs& args, const StreamPlan& plan, std::uint32_t lane,
                                       std::uint32_t to) const {
#pragma unroll
    for (int r = 0; r < S::kRows; r += kCodeRows) {
      const std::byte* const from = codes_ + r * static_cast<std::size_t>(plan.row_bytes[0]);
#pragma unroll
      for (int i = 0; i < S::kCodeRow; i += 16 * kCodeLanes) {
        copy_async<16>(to + codes_to_ + (r * S::kCodeStride + i), from + i);
      }
    }
#pragma unroll
    for (int i = 0; i < S::kHighRow; i += kRowLanes * kHighPiece) copy_async<kHighPiece>(to + high_to_ + i, high_ + i);
    if constexpr (kGrouped) {
      const std::uint32_t count = S::kGroups >> args.products[0].planes.scale_shift;
#pragma unroll
      for (std::uint32_t i = 0; i < S::kGroups; i += kRowLanes) {
        if (lane % kRowLanes + i < count) copy_async<4>(to + scales_to_ + 4 * i, scales_ + 4 * i);
      }
    } else if constexpr (S::kScales > 0) {
      if (lane < kPatchLanes) copy_async<16>(to + scales_to_, scales_);
    }
  }

  std::uint32_t left_ = 0, piece_ = 0, pieces_;  // tiles of the matrix; of a tile, those that are copied, and all
  MatrixWalk walk_;
  std::uint32_t codes_to_, high_to_, scales_to_;
  const std::byte* codes_;
  const std::byte* high_;
  const std::byte* scales_;
};

}  // namespace imago::kernels::cuda
