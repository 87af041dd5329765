#pragma once

// The matvec of one token with plain weights (matvec_split.cuh has the common frame). A tile is one row by 1024
// columns: a lane keeps the activations of 32 columns in registers, and the rows of the matrix pass by in shared
// memory.

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/matvec_products.cuh"
#include "kernels/cuda/matvec_split.cuh"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

inline constexpr std::uint32_t kRowWarps = 16;
inline constexpr int kRowRingBytes = 6656;  ///< of the ring of a warp, at most

/// The columns of a lane: vectors of 16 bytes, 32 apart, so that neighbouring lanes read neighbouring ones.
template <class T>
class RowLane {
 public:
  using Form = Plain<T>;
  static constexpr int kValues = CodeVector<Form>::kValues, kVectors = 32 / kValues;
  static constexpr int kBytes = 32 * kVectors * 16;                    ///< of a stage: the warp's columns of a row
  static constexpr int kStages = std::min(kRowRingBytes / kBytes, 5);  ///< in a ring, one row each
  static_assert(kStages >= 3);
  /// Sums of two rows are added up over the lanes together. Wider types lack the registers.
  static constexpr bool kInPairs = sizeof(T) == 1;

  /// Computes what does not depend on the previous kernel.
  __device__ __forceinline__ RowLane(const MatVecArgs& args, const WarpPlace& place, std::uint32_t lane) {
    const std::uint32_t vectors = CodeVector<Form>::count(args.products[0].planes.groups);
    is_whole_ = (place.column + 1) * (32 * kVectors) <= vectors;
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      const std::uint32_t number = place.column * (32 * kVectors) + 32 * u + lane;
      exists_[u] = number < vectors;
      from_[u] = reinterpret_cast<const float4*>(args.x + (exists_[u] ? number : 0) * kValues);
      keep(from_[u]);
    }
  }

  /// Loads the activations.
  __device__ __forceinline__ void fetch() {
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
#pragma unroll
      for (int i = 0; i < kValues / 4; ++i) {
        const float4 v = from_[u][i];
        x_[u][4 * i] = v.x, x_[u][4 * i + 1] = v.y, x_[u][4 * i + 2] = v.z, x_[u][4 * i + 3] = v.w;
      }
    }
  }
  /// All columns of the warp exist.
  __device__ __forceinline__ bool is_whole() const { return is_whole_; }

  /// The lane's part of a row's sum. `row`: address of the lane's first vector in shared memory.
  template <bool kWhole>
  __device__ __forceinline__ float product(std::uint32_t row) const {
    float result = 0;
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      if (!kWhole && !exists_[u]) continue;  // what is read there may be infinite or NaN
      CodeVector<Form> vector;
      std::uint32_t words[4];
      load_shared<4>(row + 512 * u, words);
      vector.bytes = {words[0], words[1], words[2], words[3]};
      float w[kValues];
      vector.values(w);
#pragma unroll
      for (int i = 0; i < kValues; ++i) result += w[i] * x_[u][i];
    }
    return result;
  }

 private:
  bool is_whole_, exists_[kVectors];
  const float4* from_[kVectors];
  float x_[kVectors][kValues];
};

/// Copies the rows of a warp row into the ring of a warp. The last copies of a row may reach past its end; nobody uses
/// those bytes.
template <class Lane>
class RowLoader {
 public:
  __device__ __forceinline__ RowLoader(const MatVecArgs& args, const MatVecSplit& split, const WarpPlace& place) {
    open(args, split, place);
  }
  /// Copies the next row, if there is one; `to`: address of the lane's first vector in the stage.
  __device__ __forceinline__ void copy_next(const MatVecArgs& args, const MatVecSplit& split, const WarpPlace& place,
                                            std::uint32_t to) {
    if (left_ > 0) {
#pragma unroll
      for (int i = 0; i < Lane::kBytes; i += 512) copy_async<16>(to + i, from_ + i);
      from_ += split.jumps[0];
      if (--left_ == 0) open(args, split, place);
    }
    end_copies();  // commits empty groups too: wait_for_copies counts groups
  }

 private:
  __device__ __forceinline__ void open(const MatVecArgs& args, const MatVecSplit& split, const WarpPlace& place) {
    walk_.next(args, split, place, left_, [&](const Planes& p, std::uint32_t first) {
      from_ = p.codes + static_cast<std::size_t>(first) * split.row_bytes[0] +
              (place.column * Lane::kBytes + threadIdx.x % 32 * 16);
    });
  }

  std::uint32_t left_ = 0;  // rows of the matrix that are not copied yet
  MatrixWalk walk_;
  const std::byte* from_ = nullptr;
};

/// Multiplies a warp's columns of all rows of its warp row, and stores the sums from `sums` on.
template <bool kWhole, class Lane>
__device__ __forceinline__ void multiply_rows(const MatVecArgs& args, const MatVecSplit& split, const WarpPlace& place,
                                              std::uint32_t lane, const Lane& columns, RowLoader<Lane>& loader,
                                              std::uint32_t ring, std::uint32_t sums) {
  const std::uint32_t end = ring + Lane::kStages * Lane::kBytes;
  std::uint32_t at = ring, free = end - Lane::kBytes;  // the next stage, the free one
  const auto next_product = [&] {
    wait_for_copies<Lane::kStages - 2>();
    __syncwarp();
    loader.copy_next(args, split, place, free);
    const float product = columns.template product<kWhole>(at);
    free = at;
    at = at + Lane::kBytes == end ? ring : at + Lane::kBytes;
    return product;
  };
  std::uint32_t rows = MatrixWalk::tile_rows(args, split, place);
  if constexpr (Lane::kInPairs) {
    // Two rows are summed over the lanes together: the upper half of the lanes gets the second row.
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
    matvec_rows(const __grid_constant__ MatVecArgs args, const __grid_constant__ MatVecSplit split) {
  using Lane = RowLane<T>;
  extern __shared__ __align__(16) std::byte memory[];
  let_next_in();
  const WarpPlace place(split);
  std::uint32_t lane = threadIdx.x % 32;
  keep(lane);
  const std::uint32_t base = shared_address(memory);
  std::uint32_t ring =
      base + place.warp * (Lane::kStages * Lane::kBytes) + lane * 16;  // the lane's first vector of each stage
  keep(ring);
  RowLoader<Lane> loader(args, split, place);
#pragma unroll 1
  for (int i = 0; i < Lane::kStages - 1; ++i) loader.copy_next(args, split, place, ring + i * Lane::kBytes);
  MatVecOutputs<1, kRowWarps, is_scaled(dtype_of<T>)> outputs(args, split, place, base);
  Lane columns(args, place, lane);
  wait_for_previous();
  columns.fetch();
  outputs.fetch();
  if (columns.is_whole()) {
    multiply_rows<true>(args, split, place, lane, columns, loader, ring, outputs.sums());
  } else {
    multiply_rows<false>(args, split, place, lane, columns, loader, ring, outputs.sums());
  }
  wait_for_copies<0>();
  __syncthreads();
  outputs.finish(false);
}

template <class T>
MatVecSplit split_rows(const MatVecArgs& args, const SplitNeeds& matrices) {
  using Lane = RowLane<T>;
  SplitNeeds needs = matrices;
  needs.warps = kRowWarps;
  needs.row_tiles = (args.products[0].planes.groups + 31) / 32;
  needs.ring_bytes = Lane::kStages * Lane::kBytes;
  needs.row_bytes[0] = args.products[0].planes.stride * Plain<T>::kBytes;
  return split_matvec(needs);
}

}  // namespace imago::kernels::cuda
