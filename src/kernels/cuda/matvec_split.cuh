#pragma once

// How the kernels that stream tiles (matvec_tiles.cuh, matvec_rows.cuh, matvec_batch.cuh) share out work to warps, and
// how sums become outputs.
//
// All work alike. A warp keeps the activations of its columns, and streams its tiles of the matrices through a
// ring of stages in shared memory of its own. The copies of all stages but one are always in flight, so no barriers are
// needed but those of the warp. The warps of a warp row have different columns of the same rows; at the end they leave
// their sums in shared memory, and after a barrier of the block these are added and stored.
//
// Weights never depend on the previous kernel. As soon as one of its blocks ends, a block of this kernel takes its
// place and fills its rings; it reads activations when the whole previous kernel has ended.

#include <cstdint>

#include "kernels/cuda/matvec.h"
#include "kernels/cuda/scalar_ops.h"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

/// The position of a warp: its number in the block, its warp row in the block and among all blocks, and its column in
/// the warp row.
struct WarpPlace {
  std::uint32_t warp, block_row, warp_row, column;

  __device__ __forceinline__ explicit WarpPlace(const MatVecSplit& split) {
    warp = threadIdx.x / 32;
    block_row = block_row_of(split, warp);
    warp_row = block_row * gridDim.x + blockIdx.x;  // neighbouring tile rows on different multiprocessors
    column = warp - block_row * split.column_warps;
  }
  /// Tiles of a tile row that are the warp's.
  __device__ __forceinline__ std::uint32_t tiles(const MatVecSplit& split) const {
    return (split.row_tiles - column + split.column_warps - 1) / split.column_warps;
  }
};

/// The matrices of a launch in the order in which warps take them: one product after the other, or a gate and its `up`.
class MatrixWalk {
 public:
  /// Calls f(planes, first tile row) for the next matrix of which the warp row has tile rows, and sets `left` to their
  /// number; 0: there is none. REQUIRES: none are left of the previous matrix.
  template <class F>
  __device__ __forceinline__ void next(const MatVecArgs& args, const MatVecSplit& split, const WarpPlace& place,
                                       std::uint32_t& left, F f) {
    const bool gated = args.products[0].gated;
    const int matrices = gated ? 2 : args.count;
    for (; left == 0 && next_ < matrices; ++next_) {
      const WarpTileRows rows(split, gated ? 0 : next_, place.warp_row);
      const Planes& p = gated && next_ == 1 ? args.products[0].up : args.products[gated ? 0 : next_].planes;
      left = rows.count;
      f(p, rows.first);
    }
  }

  /// The tile rows of a warp row in all matrices.
  static __device__ __forceinline__ std::uint32_t tile_rows(const MatVecArgs& args, const MatVecSplit& split,
                                                            const WarpPlace& place) {
    std::uint32_t count = 0;
    for (int p = 0; p < args.count; ++p) count += WarpTileRows(split, p, place.warp_row).count;
    return args.products[0].gated ? 2 * count : count;
  }

 private:
  int next_ = 0;
};

/// An output that a thread stores.
struct MatVecOutput {
  bool exists = false, gated = false, accumulates = false;
  Activation activation = Activation::linear;
  float* y = nullptr;
  const float* bias = nullptr;  ///< null: none
  float scale = 1, gate_scale = 1, up_scale = 1;
};

/// What is added to an output. Earlier kernels may have written it.
struct OutputAddends {
  float y = 0, bias = 0;

  __device__ __forceinline__ OutputAddends() = default;
  __device__ __forceinline__ explicit OutputAddends(const MatVecOutput& output) {
    if (output.accumulates) y = __ldcg(output.y);
    if (output.bias != nullptr) bias = __ldcg(output.bias);
  }
};

/// The epilogue. Warps leave sums over their columns in shared memory; after a barrier the threads of a warp row add
/// them and store outputs, one or a few each. kRows: rows of a tile; kMostWarps: of a warp row; kRowScales: each row
/// has a scale. Of several tokens, the sums of eight rows follow each other token by token.
template <std::uint32_t kRows, std::uint32_t kMostWarps, bool kRowScales, std::uint32_t kTokens = 1>
class MatVecOutputs {
 public:
  /// Loads what does not depend on the previous kernel.
  __device__ __forceinline__ MatVecOutputs(const MatVecArgs& args, const MatVecSplit& split, const WarpPlace& place,
                                           std::uint32_t memory)
      : args_(args), split_(split), place_(place), memory_(memory), thread_(place.column * 32 + threadIdx.x % 32) {
    first_ = output(thread_);
  }

  /// Where this warp stores its sums of the outputs of its warp row. Those of `up` follow those of the gate.
  __device__ __forceinline__ std::uint32_t sums() const { return sums_of(0) + place_.column * split_.own_bytes; }
  /// Where it stores the sum of squares of its activations.
  __device__ __forceinline__ std::uint32_t squares() const { return memory_ + split_.squares_at + place_.warp * 4; }

  /// Loads what earlier kernels wrote. Call it after wait_for_previous.
  __device__ __forceinline__ void fetch() { addends_ = OutputAddends(first_); }

  /// Stores the outputs. Call it after a barrier. `is_normed`: sums lack the factor of the RMS norm.
  __device__ __forceinline__ void finish(bool is_normed) const {
    const float factor = is_normed ? norm_factor() : 1.0f;
    const std::uint32_t threads = split_.column_warps * 32;
    MatVecOutput now = first_;
    OutputAddends addends = addends_;
    for (std::uint32_t i = thread_;;) {
      if (now.exists) store(now, i, factor, addends);
      i += threads;
      if (i >= split_.most_tile_rows * kRows * kTokens) return;
      now = output(i);
      addends = OutputAddends(now);
    }
  }

 private:
  __device__ __forceinline__ std::uint32_t sums_of(std::uint32_t i) const {
    return memory_ + split_.own_at + split_.sums_at + place_.block_row * split_.column_warps * split_.own_bytes + i * 4;
  }
  /// The i-th output of the warp row.
  __device__ __forceinline__ MatVecOutput output(std::uint32_t i) const {
    MatVecOutput result;
    std::uint32_t token = 0;
    if constexpr (kTokens > 1) {
      token = i / 8 % kTokens;
      if (token >= args_.tokens) return result;
      i = i / (8 * kTokens) * 8 + i % 8;
    }
    for (int p = 0; p < args_.count; ++p) {
      const WarpTileRows own(split_, p, place_.warp_row);
      if (i >= own.count * kRows) {
        i -= own.count * kRows;
        continue;
      }
      const MatVecProduct& product = args_.products[p];
      const std::uint32_t row = (own.first + i / kRows * split_.warp_rows) * kRows + i % kRows;
      if (row >= product.planes.rows) break;
      result.exists = true;
      result.gated = product.gated;
      result.accumulates = product.accumulate;
      result.activation = product.activation;
      result.scale = product.scale;
      result.y = product.y + row;
      if constexpr (kTokens > 1) result.y += static_cast<std::size_t>(token) * product.y_stride;
      if (product.bias != nullptr) result.bias = product.bias + row;
      if constexpr (kRowScales) {
        if (product.planes.row_scale_count == 1) {
          result.gate_scale = __ldg(product.planes.row_scales + row);
          if (product.gated) result.up_scale = __ldg(product.up.row_scales + row);
        }
      }
      break;
    }
    return result;
  }
  /// Adds the words at `first` of all warps of the warp row, `step` bytes apart.
  __device__ __forceinline__ float total(std::uint32_t first, std::uint32_t step) const {
    const std::uint32_t last = first + (split_.column_warps - 1) * step;
    std::uint32_t words[kMostWarps];  // all loads are issued before the first is used
#pragma unroll
    for (std::uint32_t c = 0; c < kMostWarps; ++c) words[c] = load_shared_small<4>(min(first + c * step, last));
    float sum = 0;
#pragma unroll
    for (std::uint32_t c = 0; c < kMostWarps; ++c) sum += c < split_.column_warps ? __uint_as_float(words[c]) : 0.0f;
    return sum;
  }
  __device__ __forceinline__ float norm_factor() const {
    const float squares = total(memory_ + split_.squares_at + place_.block_row * split_.column_warps * 4, 4);
    const float cols = static_cast<float>(args_.products[0].planes.cols);
    const float factor = 1.0f / sqrtf(squares / cols + args_.norm_eps);
    return magnitude_bits(factor) < kInfinityBits ? factor
                                                  : 0.0f;  // activations that are not finite were quantized to zeros
  }
  __device__ __forceinline__ void store(const MatVecOutput& output, std::uint32_t i, float factor,
                                        const OutputAddends& addends) const {
    const float gate = total(sums_of(i), split_.own_bytes) * (output.gate_scale * factor) + addends.bias;
    float value = activation_of(output.activation, gate);
    if (output.gated) {
      const std::uint32_t up = WarpTileRows(split_, 0, place_.warp_row).count * kRows * kTokens;
      value *= total(sums_of(up + i), split_.own_bytes) * (output.up_scale * factor);
    }
    *output.y = value * output.scale + addends.y;
  }

  const MatVecArgs& args_;
  const MatVecSplit& split_;
  const WarpPlace& place_;
  std::uint32_t memory_, thread_;
  MatVecOutput first_;
  OutputAddends addends_;
};

}  // namespace imago::kernels::cuda
