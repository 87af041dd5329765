#pragma once

// The matvec of one token and coded weights. A warp keeps the activations of its columns and streams tiles of some rows
// through a ring of its own in shared memory, the copies of all steps but one always under way: no barriers but those
// of a warp until the end, where sums of the warps that share rows meet.
//
// Weights never depend on the kernel before. Where a block of it ends, one of this takes its place and fills its rings,
// and touches activations when the whole of it has ended.

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/matvec_tile.cuh"
#include "kernels/cuda/matvec_tile_x.cuh"

namespace imago::kernels::cuda {

/// By a warp: its columns of `tiles` of its team, summed up in `sums`. Lanes that decode ahead have done so with the
/// first one.
template <bool kSingle, class Lane, class Feed>
__device__ __forceinline__ void multiply_tiles(const MatVecArgs& args, const StreamPlan& plan, const WarpPlace& place,
                                               std::uint32_t lane, Lane& columns, Feed& feed, std::uint32_t ring,
                                               const typename Lane::Ahead& ahead, std::uint32_t tiles,
                                               std::uint32_t sums) {
  using S = typename Lane::S;
  std::uint32_t piece = 0;
  const std::uint32_t end = ring + S::kCount * S::kBytes;
  std::uint32_t at = ring, free = end - S::kBytes;  // the next step, the one that is done with
  const bool is_first_of_row = lane % 4 == 0;
  const std::uint32_t pieces = feed.pieces();
  float results[S::kHeight] = {};
  const auto step = [&](auto multiply) {
    wait_for_copies<S::kCount - 2>();
    __syncwarp();
    feed.copy_step(args, plan, place, lane, free);
    if constexpr (!kSingle) columns.take(piece);
    multiply();
    free = at;
    at = at + S::kBytes == end ? ring : at + S::kBytes;
    ++piece;
  };
  const auto end_tile = [&] {
    piece = 0;
    --tiles;
#pragma unroll
    for (float& of_row : results) {
      float result = of_row;
      result += __shfl_xor_sync(~0u, result, 1);
      result += __shfl_xor_sync(~0u, result, 2);
      if (is_first_of_row) store_shared(sums, __float_as_uint(result));
      sums += kPartRows * 4;
      of_row = 0;
    }
  };
  if constexpr (Lane::kDecodesAhead) {
    if (tiles > 0) {
      step([&] { columns.add_products(at, ahead, results); });
      if constexpr (kSingle) end_tile();
    }
  }
#pragma unroll 1
  while (tiles > 0) {
    if constexpr (kSingle) {
      step([&] { columns.add_products(at, results); });
    } else {
#pragma unroll 1
      while (piece < pieces) step([&] { columns.add_products(at, results); });
    }
    end_tile();
  }
}

template <class Form, bool kGrouped, bool kSingle>
__global__ void __launch_bounds__(kTileWarps * 32, 2)
    matvec_tiles(const __grid_constant__ MatVecArgs args, const __grid_constant__ StreamPlan plan) {
  using Lane = TileLane<Form, kGrouped, kSingle>;
  using S = TileSlice<Form, kGrouped, kSingle>;
  extern __shared__ __align__(16) std::byte memory[];
  let_next_in();
  const WarpPlace place(plan);
  std::uint32_t lane = threadIdx.x % 32;
  keep(lane);
  const std::uint32_t base = shared_address(memory);
  std::uint32_t ring = base + place.warp * (S::kCount * S::kBytes);
  keep(ring);
  TileFeed<Form, kGrouped, kSingle> feed(args, plan, place, lane);
  const int early_steps = blockIdx.x < gridDim.x / 2 ? plan.first_early_steps : plan.early_steps;
#pragma unroll 1
  for (int i = 0; i < early_steps; ++i) feed.copy_step(args, plan, place, lane, ring + i * S::kBytes);

  StreamOutputs<S::kRows, kTileWarps, Form::Scales::kRow && !kGrouped> outputs(args, plan, place, base);
  Lane columns(args, plan, place, lane, base + plan.own_at + place.warp * plan.own_bytes);
  std::uint32_t tiles = MatrixWalk::tiles(args, plan, place), sums = outputs.sums() + lane;  // four lanes have a row
  keep(tiles), keep(sums);
  const TileX<Lane, kSingle> x(args, plan, place);
  typename Lane::Ahead ahead;
  const auto meanwhile = [&] {
#pragma unroll 1
    for (int i = early_steps; i < S::kCount - 1; ++i) {
      feed.copy_step(args, plan, place, lane, ring + i * S::kBytes);
    }
    outputs.fetch();
    if constexpr (Lane::kDecodesAhead) {
      wait_for_copies<S::kCount - 2>();
      __syncwarp();
      columns.decode(ring, ahead);
    }
  };
  if (args.q != nullptr) {
    x.fetch(columns, meanwhile);
  } else {
    const float squares = warp_sum(x.make(columns, meanwhile));
    if (lane == 0) store_shared(outputs.squares(), __float_as_uint(squares));
  }
  __syncwarp();
  columns.take(0);
  multiply_tiles<kSingle>(args, plan, place, lane, columns, feed, ring, ahead, tiles, sums);
  wait_for_copies<0>();
  __syncthreads();
  outputs.finish(args.q == nullptr && args.norm_weight != nullptr);
}

/// Sets how many steps are copied before the kernel before has ended. Activations are asked for behind them and wait
/// for them: with all steps for longer than these save. Blocks of the first half take the places of those that ended
/// first, and their steps are there in time; with slow codes the others would only fall further behind.
template <class Form, class S>
void plan_early_steps(bool single, const MatVecArgs& args, StreamPlan& plan) {
  using Dot = CodeDot<typename Form::Codes>;
  plan.early_steps = plan.first_early_steps = args.q == nullptr || S::kBytes < 2000 ? 1 : 2;
  const bool is_quick = !Dot::kIsSlow && Form::Scales::kParts == 1 && Form::Codes::kBits > 1;
  if (single && is_quick && args.q != nullptr) plan.first_early_steps = S::kCount - 1;
}

template <class Form, bool kGrouped, bool kSingle>
StreamPlan plan_tiles(const MatVecArgs& args, const StreamNeeds& matrices) {
  using S = TileSlice<Form, kGrouped, kSingle>;
  using Lane = TileLane<Form, kGrouped, kSingle>;
  StreamNeeds needs = matrices;
  needs.warps = kTileWarps;
  const Planes& first = args.products[0].planes;
  needs.pieces = S::pieces(first);
  needs.takes_turns = true;
  needs.tile_rows = S::kRows;
  needs.ring_bytes = S::kCount * S::kBytes;
  needs.x_bytes = Lane::kXBytes;
  needs.x_rest = Lane::kZeroBytes;
  needs.row_bytes[0] = first.stride * Form::Codes::kBytes;
  needs.row_bytes[1] = first.stride * Form::Codes::kHighBytes;
  needs.row_bytes[2] = kGrouped ? first.row_scale_count * 4 : first.patches.width * (S::kPatch / kPatchRows);
  const std::uint32_t piece_bytes[] = {S::kCodeRow, S::kHighRow, S::scale_bytes(first)};
  std::copy(std::begin(piece_bytes), std::end(piece_bytes), needs.piece_bytes);
  StreamPlan plan = plan_stream(needs);
  plan_early_steps<Form, S>(kSingle, args, plan);
  return plan;
}

/// Calls f(kernel, plan) with those for the matrices, and returns what it does.
template <class Form, bool kGrouped, class F>
auto with_tiles(const MatVecArgs& args, const StreamNeeds& matrices, F f) {
  // Patches lie in pairs where tiles have 16 rows: see patch_pairs.
  using Codes = typename Form::Codes;
  static_assert(CodeDot<Codes>::kIsSlow == kAreLevels<Codes>);
  static_assert(!kAreLevels<Codes> || TileSlice<Form, kGrouped, true>::kGroups * kTileWarps == kShortTileGroups);
  const bool single = TileSlice<Form, kGrouped, true>::pieces(args.products[0].planes) <= kTileWarps;
  return single ? f(matvec_tiles<Form, kGrouped, true>, plan_tiles<Form, kGrouped, true>(args, matrices))
                : f(matvec_tiles<Form, kGrouped, false>, plan_tiles<Form, kGrouped, false>(args, matrices));
}

}  // namespace imago::kernels::cuda
