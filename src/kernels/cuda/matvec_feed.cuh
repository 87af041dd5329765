#pragma once

// The rows of a streaming matvec on their way through shared memory: which warp has which, and where they lie in its
// ring.

#include <cstdint>

#include "kernels/cuda/matvec.h"
#include "kernels/cuda/matvec_ring.cuh"
#include "kernels/cuda/matvec_stream_plan.h"

namespace imago::kernels::cuda {

/// A warp's part of a row in its ring.
template <class Lane>
struct Slice {
  static constexpr int kGroups = 32 * Lane::kColumns / static_cast<int>(kGroup);
  static constexpr int kCodeBytes = 32 * Lane::kUnits * Lane::kUnitBytes;
  static constexpr int kHighAt = kCodeBytes, kHighBytes = kGroups * Lane::kHighBytes;
  static constexpr int kScalesAt = kHighAt + kHighBytes, kScaleBytes = kGroups * Lane::kScaleBytes;
  static constexpr int kSupersAt = kScalesAt + kScaleBytes, kSuperBytes = kGroups / 8 * Lane::kSuperBytes;
  static constexpr int kBytes = (kSupersAt + kSuperBytes + 15) / 16 * 16;
};

/// Rows come and go in steps, of several where they are short. Where a ring holds four steps there are exactly four,
/// and the loop over them is unrolled, so that places in the ring are constants.
template <class Lane>
struct Steps {
  static constexpr int kMost = static_cast<int>(kStreamRingBytes) / Slice<Lane>::kBytes;  ///< rows in a ring
  static constexpr int kRows = kMost >= 16 ? 4 : kMost >= 8 ? 2 : 1;
  static constexpr int kUnrolled = kMost >= 4 && kRows <= 2 ? 4 : 1;
  static constexpr int kCount = kUnrolled == 4 ? 4 : kMost / kRows;
  static constexpr int kBytes = kRows * Slice<Lane>::kBytes;
  static constexpr std::uint32_t kRingBytes = kCount * kBytes;
  static_assert(kCount >= 3 && kRingBytes <= kStreamRingBytes);
};

/// A warp's place: the team among those of its block and of all, and its columns.
struct WarpPlace {
  std::uint32_t team, number, columns;

  __device__ __forceinline__ explicit WarpPlace(const StreamPlan& plan) {
    const std::uint32_t warp = threadIdx.x / 32;
    team = team_of_warp(plan, warp);
    number = team * gridDim.x + blockIdx.x;  // neighbours on different multiprocessors: all have as many
    columns = warp - team * plan.column_warps;
  }
};

/// A team's rows on their way into a warp's ring. The last copies of a row may run past its end, into what follows: it
/// is not looked at.
template <class Lane>
class RingFeed {
 public:
  using S = Slice<Lane>;

  __device__ __forceinline__ RingFeed(const MatVecArgs& args, const StreamPlan& plan, const WarpPlace& place) {
    open(args, plan, place);
  }
  /// Copies a step of rows, if there is one.
  __device__ __forceinline__ void copy_step(const MatVecArgs& args, const StreamPlan& plan, const WarpPlace& place,
                                            std::uint32_t to) {
    if (left_ > 0) {
#pragma unroll
      for (int r = 0; r < Steps<Lane>::kRows; ++r) {
        if (r == 0 || r < left_) copy_row(plan, to + r * S::kBytes);
      }
      left_ -= Steps<Lane>::kRows;
      if (left_ <= 0) open(args, plan, place);
    }
    end_copies();  // empty ones too: waiting counts them
  }

 private:
  static constexpr int kCodePiece = S::kCodeBytes >= 512 ? 16 : S::kCodeBytes / 32;
  /// Bytes that a lane copies: 4, 8 or 16, or 4 in some of the lanes.
  static constexpr int piece_of(int bytes) noexcept { return bytes < 128 ? 4 : bytes / 32; }

  /// The next matrix: a product's, or a gate's and then that of its `up`.
  __device__ __forceinline__ void open(const MatVecArgs& args, const StreamPlan& plan, const WarpPlace& place) {
    const bool gated = args.products[0].gated;
    const int matrices = gated ? 2 : args.count;
    left_ = 0;
    for (; left_ == 0 && next_ < matrices; ++next_) {
      const TeamRows rows(plan, gated ? 0 : next_, place.number);
      left_ = static_cast<int>(rows.count);
      const Planes& p = gated && next_ == 1 ? args.products[0].up : args.products[gated ? 0 : next_].planes;
      const auto begin = [&](const std::byte* base, int plane, int slice, int piece) {
        return base + static_cast<std::size_t>(rows.first) * plan.row_bytes[plane] +
               (place.columns * slice + threadIdx.x % 32 * piece);
      };
      codes_ = begin(p.codes, 0, S::kCodeBytes, kCodePiece);
      if constexpr (S::kHighBytes > 0) high_ = begin(p.high, 1, S::kHighBytes, piece_of(S::kHighBytes));
      if constexpr (S::kScaleBytes > 0) scales_ = begin(p.scales, 2, S::kScaleBytes, piece_of(S::kScaleBytes));
      if constexpr (S::kSuperBytes > 0) supers_ = begin(p.supers, 3, S::kSuperBytes, piece_of(S::kSuperBytes));
    }
  }
  __device__ __forceinline__ void copy_row(const StreamPlan& plan, std::uint32_t to) {
    const std::uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < S::kCodeBytes / (32 * kCodePiece); ++i) {
      copy_async<kCodePiece>(to + (32 * i + lane) * kCodePiece, codes_ + 32 * i * kCodePiece);
    }
    codes_ += plan.jumps[0];
    copy_plane<S::kHighBytes>(to + S::kHighAt, high_, plan.jumps[1]);
    copy_plane<S::kScaleBytes>(to + S::kScalesAt, scales_, plan.jumps[2]);
    copy_plane<S::kSuperBytes>(to + S::kSupersAt, supers_, plan.jumps[3]);
  }
  template <int kBytes>
  static __device__ __forceinline__ void copy_plane(std::uint32_t to, const std::byte*& from, std::uint32_t jump) {
    if constexpr (kBytes > 0) {
      const std::uint32_t lane = threadIdx.x % 32;
      if (kBytes >= 128 || lane * 4 < kBytes) copy_async<piece_of(kBytes)>(to + lane * piece_of(kBytes), from);
      from += jump;
    }
  }

  int left_, next_ = 0;  // rows of the matrix; the one behind it
  const std::byte* codes_;
  const std::byte* high_;
  const std::byte* scales_;
  const std::byte* supers_;
};

}  // namespace imago::kernels::cuda
