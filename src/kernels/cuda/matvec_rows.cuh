#pragma once

// The matvec of one token and plain weights. A lane keeps the activations of 32 columns in registers, and the rows of
// the matrix pass by in shared memory: see matvec_tiles.cuh, of which this differs in that a warp takes one row at a
// time and multiplies floats.

#include <cstdint>

#include "kernels/cuda/matvec_outputs.cuh"
#include "kernels/cuda/matvec_stream_launch.cuh"
#include "kernels/cuda/matvec_unit.cuh"
#include "kernels/cuda/shared_loads.cuh"

namespace imago::kernels::cuda {

inline constexpr std::uint32_t kRowWarps = 16;
inline constexpr int kRowRingBytes = 6656;  ///< of a warp, at most

/// A unit is 16 bytes of weights. Units of a lane are 32 apart, so that neighbouring lanes read neighbouring ones.
template <class T>
class RowLane {
 public:
  using Form = Plain<T>;
  static constexpr int kValues = Unit<Form>::kValues, kUnits = 32 / kValues;
  static constexpr int kBytes = 32 * kUnits * 16;  ///< of a warp's columns of a row
  /// Rows in a ring. If there are four the loop over them is unrolled, so that places in the ring are constants.
  static constexpr int kMost = kRowRingBytes / kBytes, kCount = kMost > 4 ? 4 : kMost;
  static_assert(kCount >= 3);

  __device__ __forceinline__ void fetch(const MatVecArgs& args, const WarpPlace& place) {
    const std::uint32_t units = Unit<Form>::count(args.products[0].planes.groups);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const std::uint32_t number = place.columns * (32 * kUnits) + 32 * u + threadIdx.x % 32;
      exists_[u] = number < units;
      const float4* const from = reinterpret_cast<const float4*>(args.x + (exists_[u] ? number : 0) * kValues);
#pragma unroll
      for (int i = 0; i < kValues / 4; ++i) {
        const float4 v = from[i];
        x_[u][4 * i] = v.x, x_[u][4 * i + 1] = v.y, x_[u][4 * i + 2] = v.z, x_[u][4 * i + 3] = v.w;
      }
    }
  }

  /// `row`: address in shared memory.
  __device__ __forceinline__ float product(std::uint32_t row) const {
    float result = 0;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (!exists_[u]) continue;  // weights may be infinite or NaN
      Unit<Form> unit;
      std::uint32_t words[4];
      load_shared<4>(row + (32 * u + threadIdx.x % 32) * 16, words);
      unit.bytes = {words[0], words[1], words[2], words[3]};
      float w[kValues];
      unit.values(w);
#pragma unroll
      for (int i = 0; i < kValues; ++i) result += w[i] * x_[u][i];
    }
    return result;
  }

 private:
  bool exists_[kUnits];
  float x_[kUnits][kValues];
};

/// A team's rows on their way into a warp's ring. The last copies of a row may run past its end, into what follows: it
/// is not looked at.
template <class Lane>
class RowFeed {
 public:
  __device__ __forceinline__ RowFeed(const MatVecArgs& args, const StreamPlan& plan, const WarpPlace& place) {
    open(args, plan, place);
  }
  /// Copies a row, if there is one.
  __device__ __forceinline__ void copy_step(const MatVecArgs& args, const StreamPlan& plan, const WarpPlace& place,
                                            std::uint32_t to) {
    if (left_ > 0) {
#pragma unroll
      for (int i = 0; i < Lane::kBytes; i += 512) copy_async<16>(to + threadIdx.x % 32 * 16 + i, from_ + i);
      from_ += plan.jumps[0];
      if (--left_ == 0) open(args, plan, place);
    }
    end_copies();  // empty ones too: waiting counts them
  }

 private:
  __device__ __forceinline__ void open(const MatVecArgs& args, const StreamPlan& plan, const WarpPlace& place) {
    walk_.next(args, plan, place, left_, [&](const Planes& p, std::uint32_t first) {
      from_ = p.codes + static_cast<std::size_t>(first) * plan.row_bytes[0] +
              (place.columns * Lane::kBytes + threadIdx.x % 32 * 16);
    });
  }

  std::uint32_t left_ = 0;  // rows of the matrix
  MatrixWalk walk_;
  const std::byte* from_ = nullptr;
};

/// By a warp: its columns of all rows of its team, summed up in `sums`.
template <class Lane>
__device__ __forceinline__ void multiply_rows(const MatVecArgs& args, const StreamPlan& plan, const WarpPlace& place,
                                              const Lane& columns, RowFeed<Lane>& feed, std::uint32_t ring,
                                              std::uint32_t sums) {
  constexpr int kUnrolled = Lane::kCount == 4 ? 4 : 1, kShare = 32 / kUnrolled;  // lanes that have a row's total
  const std::uint32_t lane = threadIdx.x % 32;
  int rows = static_cast<int>(MatrixWalk::tiles(args, plan, place));
  sums += lane / kShare * 4;
  std::uint32_t at = 0, free = (Lane::kCount - 1) * Lane::kBytes;  // of the ring: the next row, the one done with
#pragma unroll 1
  for (; rows > 0; rows -= kUnrolled) {
    float totals[kUnrolled];
#pragma unroll
    for (int b = 0; b < kUnrolled; ++b) {
      const std::uint32_t now = kUnrolled == 4 ? b * Lane::kBytes : at;
      const std::uint32_t to = kUnrolled == 4 ? (b + 3) % 4 * Lane::kBytes : free;
      wait_for_copies<Lane::kCount - 2>();
      __syncwarp();
      feed.copy_step(args, plan, place, ring + to);
      totals[b] = columns.product(ring + now);  // behind the last row: of something old that nobody looks at
    }
    free = at;
    at = at + Lane::kBytes == Lane::kCount * Lane::kBytes ? 0 : at + Lane::kBytes;
    const float total = total_of(totals, lane);
    if (lane % kShare == 0 && static_cast<int>(lane / kShare) < rows) store_shared(sums, __float_as_uint(total));
    sums += kUnrolled * 4;
  }
}

template <class T>
__global__ void __launch_bounds__(kRowWarps * 32, 2)
    matvec_rows(const __grid_constant__ MatVecArgs args, const __grid_constant__ StreamPlan plan) {
  using Lane = RowLane<T>;
  extern __shared__ __align__(16) std::byte memory[];
  let_next_in();
  const WarpPlace place(plan);
  const std::uint32_t base = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  const std::uint32_t ring = base + place.warp * (Lane::kCount * Lane::kBytes);
  RowFeed<Lane> feed(args, plan, place);
#pragma unroll 1
  for (int i = 0; i < Lane::kCount - 1; ++i) feed.copy_step(args, plan, place, ring + i * Lane::kBytes);
  StreamOutputs<1, kRowWarps, is_scaled(dtype_of<T>)> outputs(args, plan, place, base);
  wait_for_previous();
  Lane columns;
  columns.fetch(args, place);
  outputs.fetch();
  multiply_rows(args, plan, place, columns, feed, ring, outputs.sums());
  wait_for_copies<0>();
  __syncthreads();
  outputs.finish(false);
}

template <class T>
bool launch_rows(const MatVecArgs& args, const StreamNeeds& matrices, const LaunchFacts& facts, CUstream_st* stream) {
  using Lane = RowLane<T>;
  StreamNeeds needs = matrices;
  needs.warps = kRowWarps;
  needs.pieces = (args.products[0].planes.groups + 31) / 32;
  needs.ring_bytes = Lane::kCount * Lane::kBytes;
  needs.row_bytes[0] = args.products[0].planes.stride * Plain<T>::kBytes;
  const StreamPlan plan = plan_stream(needs);
  if (!is_possible(plan, facts)) return false;
  launch_stream(matvec_rows<T>, args, plan, facts, stream);
  return true;
}

}  // namespace imago::kernels::cuda
