#pragma once

// The outputs of a streaming matvec. Warps leave sums over their columns in shared memory; when all are there, the
// threads of a team make outputs of them, one or a few each.

#include <cstdint>

#include "kernels/cuda/matvec.h"
#include "kernels/cuda/matvec_finish.cuh"
#include "kernels/cuda/matvec_ring.cuh"
#include "kernels/cuda/matvec_stream_plan.h"
#include "kernels/cuda/scalar_ops.h"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

/// A warp's place: the team among those of its block and of all, and its columns.
struct WarpPlace {
  std::uint32_t warp, team, number, columns;

  __device__ __forceinline__ explicit WarpPlace(const StreamPlan& plan) {
    warp = threadIdx.x / 32;
    team = team_of_warp(plan, warp);
    number = team * gridDim.x + blockIdx.x;  // neighbours on different multiprocessors: all have as many
    columns = warp - team * plan.column_warps;
  }
  /// Pieces of a row that are the warp's.
  __device__ __forceinline__ std::uint32_t pieces(const StreamPlan& plan) const {
    return (plan.pieces - columns + plan.column_warps - 1) / plan.column_warps;
  }
};

/// The matrices of a launch in the order in which teams take them: a product's after the other, or a gate's and then
/// that of its `up`.
class MatrixWalk {
 public:
  /// Calls f(planes, first tile) with the next one of which the team has tiles, and sets `left` to how many; 0: there
  /// is none. REQUIRES: none are left of the one before.
  template <class F>
  __device__ __forceinline__ void next(const MatVecArgs& args, const StreamPlan& plan, const WarpPlace& place,
                                       std::uint32_t& left, F f) {
    const bool gated = args.products[0].gated;
    const int matrices = gated ? 2 : args.count;
    for (; left == 0 && next_ < matrices; ++next_) {
      const TeamTiles tiles(plan, gated ? 0 : next_, place.number);
      const Planes& p = gated && next_ == 1 ? args.products[0].up : args.products[gated ? 0 : next_].planes;
      left = tiles.count;
      f(p, tiles.first);
    }
  }

  /// The team's tiles of all matrices.
  static __device__ __forceinline__ std::uint32_t tiles(const MatVecArgs& args, const StreamPlan& plan,
                                                        const WarpPlace& place) {
    std::uint32_t count = 0;
    for (int p = 0; p < args.count; ++p) count += TeamTiles(plan, p, place.number).count;
    return args.products[0].gated ? 2 * count : count;
  }

 private:
  int next_ = 0;
};

/// One output of a thread.
struct StreamOutput {
  bool exists = false, gated = false, accumulates = false;
  Activation activation = Activation::linear;
  float* y = nullptr;
  const float* bias = nullptr;  ///< null: none
  float scale = 1, gate_scale = 1, up_scale = 1;
};

/// What is added to it, which earlier work on the stream may have made.
struct OutputAddends {
  float y = 0, bias = 0;

  __device__ __forceinline__ OutputAddends() = default;
  __device__ __forceinline__ explicit OutputAddends(const StreamOutput& output) {
    if (output.accumulates) y = __ldcg(output.y);
    if (output.bias != nullptr) bias = __ldcg(output.bias);
  }
};

/// kRows: of a tile; kMostWarps: of a team; kRowScales: rows have a scale each.
template <std::uint32_t kRows, std::uint32_t kMostWarps, bool kRowScales>
class StreamOutputs {
 public:
  /// Begins with what does not depend on the kernel before.
  __device__ __forceinline__ StreamOutputs(const MatVecArgs& args, const StreamPlan& plan, const WarpPlace& place,
                                           std::uint32_t memory)
      : args_(args), plan_(plan), place_(place), memory_(memory), thread_(place.columns * 32 + threadIdx.x % 32) {
    first_ = output(thread_);
  }

  /// Where this warp puts the sums of its team's outputs, one behind the other. Those of an `up` follow those of its
  /// gate.
  __device__ __forceinline__ std::uint32_t sums() const { return sums_of(0) + place_.columns * plan_.own_bytes; }
  /// Where it puts the sum of the squares of its activations.
  __device__ __forceinline__ std::uint32_t squares() const { return memory_ + plan_.squares_at + place_.warp * 4; }

  /// When the kernel before has ended.
  __device__ __forceinline__ void fetch() { addends_ = OutputAddends(first_); }

  /// After a barrier. `is_normed`: sums lack the factor of the RMS norm.
  __device__ __forceinline__ void finish(bool is_normed) const {
    const float factor = is_normed ? norm_factor() : 1.0f;
    const std::uint32_t threads = plan_.column_warps * 32;
    StreamOutput now = first_;
    OutputAddends addends = addends_;
    for (std::uint32_t i = thread_;;) {
      if (now.exists) store(now, i, factor, addends);
      i += threads;
      if (i >= plan_.team_tiles * kRows) return;
      now = output(i);
      addends = OutputAddends(now);
    }
  }

 private:
  __device__ __forceinline__ std::uint32_t sums_of(std::uint32_t i) const {
    return memory_ + plan_.own_at + plan_.sums_at + place_.team * plan_.column_warps * plan_.own_bytes + i * 4;
  }
  /// The i-th of the team.
  __device__ __forceinline__ StreamOutput output(std::uint32_t i) const {
    StreamOutput result;
    for (int p = 0; p < args_.count; ++p) {
      const TeamTiles tiles(plan_, p, place_.number);
      if (i >= tiles.count * kRows) {
        i -= tiles.count * kRows;
        continue;
      }
      const MatVecProduct& product = args_.products[p];
      const std::uint32_t row = (tiles.first + i / kRows * plan_.teams) * kRows + i % kRows;
      if (row >= product.planes.rows) break;
      result.exists = true;
      result.gated = product.gated;
      result.accumulates = product.accumulate;
      result.activation = product.activation;
      result.scale = product.scale;
      result.y = product.y + row;
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
  /// Σ over the warps of a team of what each has at `first`, `step` bytes apart.
  __device__ __forceinline__ float total(std::uint32_t first, std::uint32_t step) const {
    const std::uint32_t last = first + (plan_.column_warps - 1) * step;
    std::uint32_t words[kMostWarps];  // all on their way before the first is waited for
#pragma unroll
    for (std::uint32_t c = 0; c < kMostWarps; ++c) words[c] = load_shared_small<4>(min(first + c * step, last));
    float sum = 0;
#pragma unroll
    for (std::uint32_t c = 0; c < kMostWarps; ++c) sum += c < plan_.column_warps ? __uint_as_float(words[c]) : 0.0f;
    return sum;
  }
  __device__ __forceinline__ float norm_factor() const {
    const float squares = total(memory_ + plan_.squares_at + place_.team * plan_.column_warps * 4, 4);
    const float cols = static_cast<float>(args_.products[0].planes.cols);
    const float factor = 1.0f / sqrtf(squares / cols + args_.norm_eps);
    return magnitude_bits(factor) < kInfinityBits ? factor : 0.0f;  // of what is not finite there are no codes
  }
  __device__ __forceinline__ void store(const StreamOutput& output, std::uint32_t i, float factor,
                                        const OutputAddends& addends) const {
    const float gate = total(sums_of(i), plan_.own_bytes) * (output.gate_scale * factor) + addends.bias;
    float value = activation_of(output.activation, gate);
    if (output.gated) {
      const std::uint32_t up = TeamTiles(plan_, 0, place_.number).count * kRows;
      value *= total(sums_of(up + i), plan_.own_bytes) * (output.up_scale * factor);
    }
    *output.y = value * output.scale + addends.y;
  }

  const MatVecArgs& args_;
  const StreamPlan& plan_;
  const WarpPlace& place_;
  std::uint32_t memory_, thread_;
  StreamOutput first_;
  OutputAddends addends_;
};

}  // namespace imago::kernels::cuda
