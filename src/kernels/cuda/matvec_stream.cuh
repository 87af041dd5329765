#pragma once

// The matvec of one token. A warp keeps the activations of its columns in registers (matvec_lane.cuh) and streams its
// part of row after row through a ring of its own in shared memory, the copies of all steps but one always under way:
// no barriers but those of a warp, and a row costs a lane little more than its products. Sums of the warps that share a
// row meet in shared memory once, at the end.
//
// Weights never depend on the kernel before. Where a block of it ends, one of this takes its place and fills its rings,
// and touches activations when the whole of it has ended.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "device/cuda/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/matvec_feed.cuh"
#include "kernels/cuda/matvec_finish.cuh"
#include "kernels/cuda/matvec_form.cuh"
#include "kernels/cuda/matvec_lane.cuh"
#include "kernels/cuda/matvec_stream_plan.h"

namespace imago::kernels::cuda {

/// What an output needs at its end, fetched at the beginning.
struct OutputEnd {
  float gate_scale, up_scale, bias;
};
static_assert(sizeof(OutputEnd) == kStreamEndBytes);

/// Steps of so many rows.
template <class Lane>
__device__ __forceinline__ std::uint32_t step_count(std::uint32_t rows) {
  return (rows + Steps<Lane>::kRows - 1) / Steps<Lane>::kRows;
}

/// Calls f(i, product, row, place of its sum) with the outputs of a team, a lane for each.
template <class Lane, class F>
__device__ __forceinline__ void for_outputs(const MatVecArgs& args, const StreamPlan& plan, std::uint32_t number, F f) {
  std::uint32_t i = 0, place = 0;
  for (int p = 0; p < args.count; ++p) {
    const TeamRows rows(plan, p, number);
    for (std::uint32_t j = threadIdx.x % 32; j < rows.count; j += 32) {
      f(i + j, args.products[p], rows.first + j * plan.teams, place + j);
    }
    i += rows.count;
    place += step_count<Lane>(rows.count) * Steps<Lane>::kRows;
  }
}

/// What y held is fetched early for the first 32 outputs of a single product: output i by lane i.
__device__ __forceinline__ bool is_fetched(const MatVecArgs& args, std::uint32_t i) {
  return args.count == 1 && i < 32;
}

/// Queues copies, as part of the next step's. Returns what y held, see is_fetched: nobody waits for that before the
/// end.
template <class Lane>
__device__ __forceinline__ float fetch_ends(const MatVecArgs& args, const StreamPlan& plan, std::uint32_t number,
                                            OutputEnd* ends) {
  const auto fetch = [](float& to, const float* from, std::uint32_t row, float otherwise) {
    if (from == nullptr) {
      to = otherwise;
    } else {
      copy_async<4>(static_cast<std::uint32_t>(__cvta_generic_to_shared(&to)),
                    reinterpret_cast<const std::byte*>(from + row));
    }
  };
  float before = 0;
  for_outputs<Lane>(args, plan, number,
                    [&](std::uint32_t i, const MatVecProduct& product, std::uint32_t row, std::uint32_t) {
                      OutputEnd& end = ends[i];
                      fetch(end.gate_scale, Lane::kRowScales ? product.planes.row_scales : nullptr, row, 1);
                      fetch(end.up_scale, Lane::kRowScales && product.gated ? product.up.row_scales : nullptr, row, 1);
                      fetch(end.bias, product.bias, row, 0);
                      if (product.accumulate && is_fetched(args, i)) before = __ldcg(product.y + row);
                    });
  return before;
}

/// Sums of the column warps, and what comes of them. By the lanes that fetched the ends.
template <class Lane>
__device__ __forceinline__ void finish_outputs(const MatVecArgs& args, const StreamPlan& plan, std::uint32_t number,
                                               const OutputEnd* ends, float before, const float* sums) {
  const auto total = [&](std::uint32_t place) {
    float sum = 0;
    for (std::uint32_t c = 0; c < plan.column_warps; ++c) sum += sums[place * plan.column_warps + c];
    return sum;
  };
  const std::uint32_t up = step_count<Lane>(TeamRows(plan, 0, number).count) * Steps<Lane>::kRows;
  for_outputs<Lane>(args, plan, number,
                    [&](std::uint32_t i, const MatVecProduct& product, std::uint32_t row, std::uint32_t place) {
                      const OutputEnd& end = ends[i];
                      float value = activation_of(product.activation, total(place) * end.gate_scale + end.bias);
                      if (product.gated) value *= total(up + place) * end.up_scale;
                      float* const y = product.y + row;
                      const float old = !product.accumulate ? 0.0f : is_fetched(args, i) ? before : __ldcg(y);
                      *y = value * product.scale + old;
                    });
}

/// By a warp: its columns of all rows of its team, summed up in `sums`: [row of the team][column warp].
template <class Lane>
__device__ __forceinline__ void multiply_rows(const MatVecArgs& args, const StreamPlan& plan, const Lane& columns,
                                              const WarpPlace& place, RingFeed<Lane>& feed, std::uint32_t ring,
                                              float* sums) {
  using S = Slice<Lane>;
  using T = Steps<Lane>;
  constexpr SlicePlanes kPlanes{S::kHighAt, S::kScalesAt, S::kSupersAt};
  constexpr int kSums = T::kUnrolled * T::kRows, kShare = 32 / kSums;  // lanes that have a row's total
  const std::uint32_t lane = threadIdx.x % 32;
  int steps = 0;
  for (int p = 0; p < args.count; ++p)
    steps += static_cast<int>(step_count<Lane>(TeamRows(plan, p, place.number).count));
  if (args.products[0].gated) steps *= 2;
  sums += lane / kShare * plan.column_warps;
  std::uint32_t at = 0, free = (T::kCount - 1) * T::kBytes;  // of the ring: the next step, the one that is done with
#pragma unroll 1
  for (; steps > 0; steps -= T::kUnrolled) {
    float totals[kSums];
#pragma unroll
    for (int b = 0; b < T::kUnrolled; ++b) {
      const std::uint32_t now = T::kUnrolled == 4 ? b * T::kBytes : at;
      const std::uint32_t to = T::kUnrolled == 4 ? (b + 3) % 4 * T::kBytes : free;
      wait_for_copies<T::kCount - 2>();
      __syncwarp();
      feed.copy_step(args, plan, place, ring + to);
#pragma unroll
      for (int r = 0; r < T::kRows; ++r) {  // behind the last row: of something old that nobody looks at
        totals[b * T::kRows + r] =
            columns.template product<kPlanes>(ring + now + r * S::kBytes, args.products[0].planes.zero);
      }
    }
    free = at;
    at = at + T::kBytes == T::kCount * T::kBytes ? 0 : at + T::kBytes;
    const float total = total_of(totals, lane);
    if (lane % kShare == 0 && static_cast<int>(lane / kShare / T::kRows) < steps) *sums = total;
    sums += kSums * plan.column_warps;
  }
}

/// Waits for the kernel before, and takes up what it has made. Calls `meanwhile` when that is asked for.
template <class Lane, class Meanwhile>
__device__ __forceinline__ void take_activations(const MatVecArgs& args, const StreamPlan& plan, const WarpPlace& place,
                                                 Lane& columns, std::byte* memory, Meanwhile meanwhile) {
  const std::uint32_t first = place.columns * (32 * Lane::kUnits);
  if constexpr (!Lane::kInt8) {
    wait_for_previous();
    columns.fetch(args, first);
    meanwhile();
  } else if (!Lane::kTakesFormHere || !plan.keeps_form) {
    wait_for_previous();
    columns.fetch(args, FormThere{args}, first);
    meanwhile();
    columns.take(1.0f);
  } else if constexpr (Lane::kTakesFormHere) {
    const FormHere<Lane::kNeighbours> form(memory + plan.form_at, plan.column_warps);
    float factor = 1;
    if (args.q != nullptr) {
      wait_for_previous();
      bring_form(args, form, meanwhile);
      __syncthreads();
    } else {
      const FormMaker maker(args);
      wait_for_previous();
      maker.make(form, meanwhile);
      __syncthreads();
      factor = maker.factor(form);
    }
    columns.fetch(args, form, first);
    columns.take(factor);
  }
}

template <class Lane>
__global__ void __launch_bounds__(kStreamWarps * 32, 2)
    matvec_stream(const __grid_constant__ MatVecArgs args, const __grid_constant__ StreamPlan plan) {
  using T = Steps<Lane>;
  extern __shared__ __align__(16) std::byte memory[];
  let_next_in();
  const WarpPlace place(plan);
  const std::uint32_t warp = threadIdx.x / 32;
  const std::uint32_t ring = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory)) + warp * T::kRingBytes;
  RingFeed<Lane> feed(args, plan, place);
#pragma unroll 1
  for (int i = 0; i < plan.early_steps; ++i) feed.copy_step(args, plan, place, ring + i * T::kBytes);

  Lane columns;
  take_activations(args, plan, place, columns, memory, [&] {
#pragma unroll 1
    for (int i = plan.early_steps; i < T::kCount - 1; ++i) feed.copy_step(args, plan, place, ring + i * T::kBytes);
  });
  // Warp i ends what team i has begun.
  OutputEnd* const ends = reinterpret_cast<OutputEnd*>(memory + plan.ends_at) + warp * plan.team_outputs;
  const std::uint32_t number = warp * gridDim.x + blockIdx.x;
  float before = 0;
  if (warp < plan.row_warps) before = fetch_ends<Lane>(args, plan, number, ends);
  float* const sums = reinterpret_cast<float*>(memory + plan.sums_at);
  multiply_rows(args, plan, columns, place, feed, ring, sums + place.team * plan.team_sums + place.columns);
  wait_for_copies<0>();
  __syncthreads();
  if (warp < plan.row_warps) finish_outputs<Lane>(args, plan, number, ends, before, sums + warp * plan.team_sums);
}

/// Not where lanes find what they want side by side in device memory.
template <class Lane>
bool keeps_form(const MatVecArgs& args) {
  if constexpr (Lane::kInt8) return Lane::kTakesFormHere && (args.q == nullptr || Lane::kNeighbours > 1);
  return false;
}

/// Steps to copy before the kernel before has ended. Activations are asked for behind them and wait for them: with all
/// steps for longer than these save. Fewer yet where much is asked for, or where a row is over soon.
template <class Lane>
int early_steps(const MatVecArgs& args, const StreamPlan& plan) {
  constexpr int kMost = Steps<Lane>::kCount - 1;
  if constexpr (!Lane::kInt8) return kMost;
  const std::uint32_t pieces = 2 * args.products[0].planes.groups;
  const bool is_slow = args.q == nullptr || pieces > plan.column_warps * plan.row_warps * 32;
  return std::min(kMost, is_slow || Lane::kUnitBytes < 16 ? 1 : 2);
}

template <class Form>
bool stream_matvec(const MatVecArgs& args, const LaunchFacts& facts, CUstream_st* stream) {
  using Lane = StreamLane<Form>;
  if (args.tokens != 1) return false;
  if constexpr (Lane::kInt8) {
    if (args.q == nullptr && !Lane::kTakesFormHere) return false;
  }
  const Planes& first = args.products[0].planes;
  const std::uint32_t stride = first.stride;
  StreamNeeds needs{.units = Lane::unit_count(first.groups),
                    .lane_units = Lane::kUnits,
                    .step_rows = Steps<Lane>::kRows,
                    .ring_bytes = Steps<Lane>::kRingBytes,
                    .row_bytes = {stride * Lane::kGroupBytes, stride * Lane::kHighBytes, stride * Lane::kScaleBytes,
                                  stride / 8 * Lane::kSuperBytes},
                    .keeps_form = keeps_form<Lane>(args),
                    .gated = args.products[0].gated,
                    .multiprocessors = static_cast<std::uint32_t>(facts.multiprocessors)};
  // One product that is gated, or some that are not; scales of groups are for the other kernel.
  if (needs.gated && args.count > 1) return false;
  const auto is_like_first = [&](const Planes& p) { return p.row_scale_count <= 1 && p.zero == first.zero; };
  for (int p = 0; p < args.count; ++p) {
    const MatVecProduct& product = args.products[p];
    if (product.gated != needs.gated || !is_like_first(product.planes)) return false;
    if (product.gated && !is_like_first(product.up)) return false;
    needs.rows[p] = product.planes.rows;
  }
  StreamPlan plan = plan_stream(needs);
  if (plan.column_warps == 0 && needs.keeps_form && args.q != nullptr) {  // no room for that
    needs.keeps_form = false;
    plan = plan_stream(needs);
  }
  plan.early_steps = early_steps<Lane>(args, plan);
  if (plan.column_warps == 0 || plan.bytes > facts.shared_bytes) return false;
  imago::cuda::check(cudaFuncSetAttribute(matvec_stream<Lane>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(facts.shared_bytes)),
                     "shared memory");
  launch_overlapped("a product of one token", matvec_stream<Lane>, plan.blocks, plan.column_warps * plan.row_warps * 32,
                    plan.bytes, stream, args, plan);
  return true;
}

}  // namespace imago::kernels::cuda
