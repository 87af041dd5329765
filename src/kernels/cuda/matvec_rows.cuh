#pragma once

// The matvec of one token and plain weights. A lane keeps the activations of 32 columns in registers, and the rows of
// the matrix pass by in shared memory: see matvec_tiles.cuh, of which this differs in that a warp takes one row at a
// time and multiplies floats.

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/matvec_outputs.cuh"
#include "kernels/cuda/matvec_unit.cuh"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

inline constexpr std::uint32_t kRowWarps = 16;
inline constexpr int kRowRingBytes = 6656;  ///< of a warp, at most

/// A unit is 16 bytes of weights. Units of a lane are 32 apart, so that neighbouring lanes read neighbouring ones.
template <class T>
class RowLane {
 public:
  using Form = Plain<T>;
  static constexpr int kValues = Unit<Form>::kValues, kUnits = 32 / kValues;
  static constexpr int kBytes = 32 * kUnits * 16;                     ///< of a warp's columns of a row
  static constexpr int kCount = std::min(kRowRingBytes / kBytes, 5);  ///< rows in a ring
  static_assert(kCount >= 3);
  /// Two rows follow each other in the code. Wider types have no registers for that.
  static constexpr bool kInPairs = sizeof(T) == 1;

  /// Begins with what does not depend on the kernel before.
  __device__ __forceinline__ RowLane(const MatVecArgs& args, const WarpPlace& place, std::uint32_t lane) {
    const std::uint32_t units = Unit<Form>::count(args.products[0].planes.groups);
    is_whole_ = (place.columns + 1) * (32 * kUnits) <= units;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const std::uint32_t number = place.columns * (32 * kUnits) + 32 * u + lane;
      exists_[u] = number < units;
      from_[u] = reinterpret_cast<const float4*>(args.x + (exists_[u] ? number : 0) * kValues);
      keep(from_[u]);
    }
  }

  __device__ __forceinline__ void fetch() {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int i = 0; i < kValues / 4; ++i) {
        const float4 v = from_[u][i];
        x_[u][4 * i] = v.x, x_[u][4 * i + 1] = v.y, x_[u][4 * i + 2] = v.z, x_[u][4 * i + 3] = v.w;
      }
    }
  }
  /// All columns of the warp exist.
  __device__ __forceinline__ bool is_whole() const { return is_whole_; }

  /// `row`: address of the lane's first unit in shared memory.
  template <bool kWhole>
  __device__ __forceinline__ float product(std::uint32_t row) const {
    float result = 0;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (!kWhole && !exists_[u]) continue;  // weights may be infinite or NaN
      Unit<Form> unit;
      std::uint32_t words[4];
      load_shared<4>(row + 512 * u, words);
      unit.bytes = {words[0], words[1], words[2], words[3]};
      float w[kValues];
      unit.values(w);
#pragma unroll
      for (int i = 0; i < kValues; ++i) result += w[i] * x_[u][i];
    }
    return result;
  }

 private:
  bool is_whole_, exists_[kUnits];
  const float4* from_[kUnits];
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
  /// Copies a row, if there is one; `to`: where the lane's first unit goes.
  __device__ __forceinline__ void copy_step(const MatVecArgs& args, const StreamPlan& plan, const WarpPlace& place,
                                            std::uint32_t to) {
    if (left_ > 0) {
#pragma unroll
      for (int i = 0; i < Lane::kBytes; i += 512) copy_async<16>(to + i, from_ + i);
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
template <bool kWhole, class Lane>
__device__ __forceinline__ void multiply_rows(const MatVecArgs& args, const StreamPlan& plan, const WarpPlace& place,
                                              std::uint32_t lane, const Lane& columns, RowFeed<Lane>& feed,
                                              std::uint32_t ring, std::uint32_t sums) {
  const std::uint32_t end = ring + Lane::kCount * Lane::kBytes;
  std::uint32_t at = ring, free = end - Lane::kBytes;  // the next row, the one that is done with
  const auto next_product = [&] {
    wait_for_copies<Lane::kCount - 2>();
    __syncwarp();
    feed.copy_step(args, plan, place, free);
    const float product = columns.template product<kWhole>(at);
    free = at;
    at = at + Lane::kBytes == end ? ring : at + Lane::kBytes;
    return product;
  };
  std::uint32_t rows = MatrixWalk::tiles(args, plan, place);
  if constexpr (Lane::kInPairs) {
    // Lanes are summed up for two rows together: the upper half of them have the second one.
    const bool is_upper = lane >= 16;
    sums += is_upper ? 4 : 0;
#pragma unroll 1
    for (; rows > 1; rows -= 2) {
      const float first = next_product(), second = next_product();
      float total = (is_upper ? second : first) + __shfl_xor_sync(~0u, is_upper ? first : second, 16);
#pragma unroll
      for (int i = 8; i > 0; i /= 2) total += __shfl_xor_sync(~0u, total, i);
      if (lane % 16 == 0) store_shared(sums, __float_as_uint(total));
      sums += 8;
    }
    if (rows == 1) {
      const float total = warp_sum(next_product());
      if (lane == 0) store_shared(sums, __float_as_uint(total));
    }
  } else {
#pragma unroll 1
    for (; rows > 0; --rows) {
      const float total = warp_sum(next_product());
      if (lane == 0) store_shared(sums, __float_as_uint(total));
      sums += 4;
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kRowWarps * 32, 2)
    matvec_rows(const __grid_constant__ MatVecArgs args, const __grid_constant__ StreamPlan plan) {
  using Lane = RowLane<T>;
  extern __shared__ __align__(16) std::byte memory[];
  let_next_in();
  const WarpPlace place(plan);
  std::uint32_t lane = threadIdx.x % 32;
  keep(lane);
  const std::uint32_t base = shared_address(memory);
  std::uint32_t ring = base + place.warp * (Lane::kCount * Lane::kBytes) + lane * 16;  // the lane's part of it
  keep(ring);
  RowFeed<Lane> feed(args, plan, place);
#pragma unroll 1
  for (int i = 0; i < Lane::kCount - 1; ++i) feed.copy_step(args, plan, place, ring + i * Lane::kBytes);
  StreamOutputs<1, kRowWarps, is_scaled(dtype_of<T>)> outputs(args, plan, place, base);
  Lane columns(args, place, lane);
  wait_for_previous();
  columns.fetch();
  outputs.fetch();
  if (columns.is_whole()) {
    multiply_rows<true>(args, plan, place, lane, columns, feed, ring, outputs.sums());
  } else {
    multiply_rows<false>(args, plan, place, lane, columns, feed, ring, outputs.sums());
  }
  wait_for_copies<0>();
  __syncthreads();
  outputs.finish(false);
}

template <class T>
StreamPlan plan_rows(const MatVecArgs& args, const StreamNeeds& matrices) {
  using Lane = RowLane<T>;
  StreamNeeds needs = matrices;
  needs.warps = kRowWarps;
  needs.pieces = (args.products[0].planes.groups + 31) / 32;
  needs.ring_bytes = Lane::kCount * Lane::kBytes;
  needs.row_bytes[0] = args.products[0].planes.stride * Plain<T>::kBytes;
  return plan_stream(needs);
}

}  // namespace imago::kernels::cuda
