#pragma once

// The matvec of one token with coded weights: the kernel that runs the tiles of matvec_tile.cuh in the frame of
// matvec_split.cuh, and where it gets activations. A warp loads the quantized activations of its own columns, or
// quantizes x or its RMS norm itself, which saves a kernel as expensive as a small product. The factor of the norm is
// the same for all columns, so no warp waits for it: results are multiplied with it at the end.

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/matvec_tile.cuh"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

// ---- activations

/// Eight activations of a lane: a quarter of group lane / 4 of 256 columns.
struct LaneActivations {
  float4 first = {0, 0, 0, 0}, second = {0, 0, 0, 0};

  __device__ __forceinline__ LaneActivations() = default;
  __device__ __forceinline__ explicit LaneActivations(const float* from) {
    first = *reinterpret_cast<const float4*>(from);
    second = *reinterpret_cast<const float4*>(from + 4);
  }
  __device__ __forceinline__ float squares() const {
    return first.x * first.x + first.y * first.y + first.z * first.z + first.w * first.w + second.x * second.x +
           second.y * second.y + second.z * second.z + second.w * second.w;
  }
};

/// Waits for the previous kernel and loads its activations; calls `meanwhile` once the first loads are issued.
template <class Lane, bool kSingle>
class TileActivations {
 public:
  __device__ __forceinline__ TileActivations(const MatVecArgs& args, const MatVecSplit& split, const WarpPlace& place)
      : args_(args), first_(place.column), step_(split.column_warps), sub_tiles_(split.warp_tiles * kAcross) {
    is_whole_ = ((split.warp_tiles - 1) * step_ + first_ + 1) * (kAcross * kSubTileGroups) <= groups();
  }

  /// Loads quantized activations. Their addresses are computed before the previous kernel has ended.
  template <class Meanwhile>
  __device__ __forceinline__ void fetch(const Lane& lane, Meanwhile meanwhile) const {
    QuantizedAddresses addresses(*this, 0);
    addresses.keep_all();
    wait_for_previous();
    const QuantizedCodes first(addresses);
    meanwhile();
    store_activations(lane, 0, first);
    for (std::uint32_t sub_tile = kFetched; sub_tile < sub_tiles_; sub_tile += kFetched) {
      store_activations(lane, sub_tile, QuantizedCodes(QuantizedAddresses(*this, sub_tile)));
    }
  }

  /// Quantizes x, or its RMS norm. Returns this lane's share of the sum of squares.
  template <class Meanwhile>
  __device__ __forceinline__ float quantize(const Lane& lane, Meanwhile meanwhile) const {
    LaneActivations weights[kQuantized];  // do not depend on the previous kernel: loaded while that one runs
    const float* from[kQuantized];
#pragma unroll
    for (std::uint32_t i = 0; i < kQuantized; ++i) {
      weights[i] = weight(i);
      from[i] = args_.x + column(i);
      keep(from[i]);
    }
    wait_for_previous();
    float squares = 0;
    for (std::uint32_t sub_tile = 0;;) {
      LaneActivations x[kQuantized];
#pragma unroll
      for (std::uint32_t i = 0; i < kQuantized; ++i) {
        if (exists(sub_tile + i)) x[i] = LaneActivations(from[i]);
      }
      if (sub_tile == 0) meanwhile();
#pragma unroll
      for (std::uint32_t i = 0; i < kQuantized; ++i) {
        if (sub_tile + i < sub_tiles_) store_activations(lane, sub_tile + i, x[i], weights[i]);
        squares += x[i].squares();
      }
      sub_tile += kQuantized;
      if (sub_tile >= sub_tiles_) return squares;
#pragma unroll
      for (std::uint32_t i = 0; i < kQuantized; ++i) {
        weights[i] = weight(sub_tile + i);
        from[i] = args_.x + column(sub_tile + i);
      }
    }
  }

 private:
  static constexpr std::uint32_t kAcross = Lane::S::kAcross;
  // Sub-tiles that are loaded together.
  static constexpr std::uint32_t kFetched = kSingle ? kAcross : 8, kQuantized = 2;

  /// Source addresses of a batch of sub-tiles. Those past the end point at the first group.
  struct QuantizedAddresses {
    const uint2* codes[kFetched];
    const float2* scales[kFetched];

    __device__ __forceinline__ QuantizedAddresses(const TileActivations& x, std::uint32_t sub_tile) {
      const uint2* const all_codes = reinterpret_cast<const uint2*>(x.args_.q) + threadIdx.x % 4;
      const float2* const all_scales = reinterpret_cast<const float2*>(x.args_.scales);
      if (x.is_whole_) {
        std::uint32_t group = x.group_of(sub_tile);
#pragma unroll
        for (std::uint32_t i = 0; i < kFetched; ++i) {
          codes[i] = all_codes + group * 4;
          scales[i] = all_scales + group;
          const std::uint32_t step = i % kAcross + 1 < kAcross ? 1 : (x.step_ - 1) * kAcross + 1;
          if (sub_tile + i + 1 < x.sub_tiles_) group += step * kSubTileGroups;
        }
      } else {
#pragma unroll
        for (std::uint32_t i = 0; i < kFetched; ++i) {
          const std::uint32_t group = x.exists(sub_tile + i) ? x.group_of(sub_tile + i) : 0;
          codes[i] = all_codes + group * 4;
          scales[i] = all_scales + group;
        }
      }
    }
    __device__ __forceinline__ void keep_all() {
#pragma unroll
      for (std::uint32_t i = 0; i < kFetched; ++i) keep(codes[i]), keep(scales[i]);
    }
  };
  /// The activations at those addresses.
  struct QuantizedCodes {
    uint2 codes[kFetched];
    float2 scales[kFetched];

    __device__ __forceinline__ explicit QuantizedCodes(const QuantizedAddresses& addresses) {
#pragma unroll
      for (std::uint32_t i = 0; i < kFetched; ++i) {
        codes[i] = *addresses.codes[i];
        scales[i] = *addresses.scales[i];
      }
    }
  };
  /// Stores a batch that begins at `sub_tile`, with zeros past the end of the row.
  __device__ __forceinline__ void store_activations(const Lane& lane, std::uint32_t sub_tile,
                                                    const QuantizedCodes& loaded) const {
    const auto store_all = [&](auto scale_of) {
#pragma unroll
      for (std::uint32_t i = 0; i < kFetched; ++i) {
        if (kSingle || sub_tile + i < sub_tiles_)
          lane.store_activations(args_, sub_tile + i, loaded.codes[i], scale_of(i));
      }
    };
    if (is_whole_) {
      store_all([&](std::uint32_t i) { return loaded.scales[i]; });
    } else {
      store_all([&](std::uint32_t i) { return exists(sub_tile + i) ? loaded.scales[i] : float2{0, 0}; });
    }
  }

  __device__ __forceinline__ std::uint32_t groups() const { return args_.products[0].planes.groups; }
  __device__ __forceinline__ std::uint32_t group_of(std::uint32_t sub_tile) const {
    return ((sub_tile / kAcross * step_ + first_) * kAcross + sub_tile % kAcross) * kSubTileGroups +
           threadIdx.x % 32 / 4;
  }
  __device__ __forceinline__ std::uint32_t column(std::uint32_t sub_tile) const {
    return group_of(sub_tile) * static_cast<std::uint32_t>(kGroup) + threadIdx.x % 4 * 8;
  }
  __device__ __forceinline__ bool exists(std::uint32_t sub_tile) const {
    return sub_tile < sub_tiles_ && group_of(sub_tile) < groups();
  }
  __device__ __forceinline__ LaneActivations weight(std::uint32_t sub_tile) const {
    if (args_.norm_weight != nullptr && exists(sub_tile)) return LaneActivations(args_.norm_weight + column(sub_tile));
    LaneActivations ones;
    ones.first = ones.second = {1, 1, 1, 1};
    return ones;
  }
  __device__ __forceinline__ void store_activations(const Lane& lane, std::uint32_t sub_tile, const LaneActivations& x,
                                                    const LaneActivations& w) const {
    const float values[8] = {x.first.x * w.first.x,   x.first.y * w.first.y,   x.first.z * w.first.z,
                             x.first.w * w.first.w,   x.second.x * w.second.x, x.second.y * w.second.y,
                             x.second.z * w.second.z, x.second.w * w.second.w};
    alignas(8) std::int8_t codes[8];
    float2 scale = {int8_codes(values, codes).scale, 0};
    const uint2 words = *reinterpret_cast<const uint2*>(codes);
    if constexpr (Lane::kHasSum && Lane::kHalves == 1) {
      std::int32_t sum = dot4(0x01010101u, words.x, dot4(0x01010101u, words.y, 0));
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      scale.y = times(scale.x, static_cast<float>(sum));
    }
    lane.store_activations(args_, sub_tile, words, scale);
  }

  const MatVecArgs& args_;
  std::uint32_t first_, step_;  // the warp's first tile of a tile row, and from one to the next
  std::uint32_t sub_tiles_;     // of all its tiles
  bool is_whole_;               // none is past the end of the row
};

// ---- the kernel

/// Multiplies a warp's tiles of `tile_rows` tile rows, and stores the sums from `sums` on. With kDecodesAhead, `ahead`
/// has the first tile.
template <bool kSingle, class Lane, class Loader>
__device__ __forceinline__ void multiply_tiles(const MatVecArgs& args, const MatVecSplit& split, const WarpPlace& place,
                                               std::uint32_t lane, Lane& columns, Loader& loader, std::uint32_t ring,
                                               const typename Lane::Ahead& ahead, std::uint32_t tile_rows,
                                               std::uint32_t sums) {
  using S = typename Lane::S;
  std::uint32_t tile = 0;
  const std::uint32_t end = ring + S::kStages * S::kBytes;
  std::uint32_t at = ring, free = end - S::kBytes;  // the next stage, the free one
  const bool is_first_of_row = lane % 4 == 0;
  const std::uint32_t tiles = loader.tiles();
  float results[S::kDown] = {};
  const auto stage_step = [&](auto multiply) {
    wait_for_copies<S::kStages - 2>();
    __syncwarp();
    loader.copy_next(args, split, place, lane, free);
    if constexpr (!kSingle) columns.load_activations(tile);
    multiply();
    free = at;
    at = at + S::kBytes == end ? ring : at + S::kBytes;
    ++tile;
  };
  const auto end_tile_row = [&] {
    tile = 0;
    --tile_rows;
#pragma unroll
    for (float& of_row : results) {
      float result = of_row;
      result += __shfl_xor_sync(~0u, result, 1);
      result += __shfl_xor_sync(~0u, result, 2);
      if (is_first_of_row) store_shared(sums, __float_as_uint(result));
      sums += kSubTileRows * 4;
      of_row = 0;
    }
  };
  if constexpr (Lane::kDecodesAhead) {
    if (tile_rows > 0) {
      stage_step([&] { columns.add_products(at, ahead, results); });
      if constexpr (kSingle) end_tile_row();
    }
  }
#pragma unroll 1
  while (tile_rows > 0) {
    if constexpr (kSingle) {
      stage_step([&] { columns.add_products(at, results); });
    } else {
#pragma unroll 1
      while (tile < tiles) stage_step([&] { columns.add_products(at, results); });
    }
    end_tile_row();
  }
}

template <class Form, bool kGrouped, bool kSingle>
__global__ void __launch_bounds__(kTileWarps * 32, 2)
    matvec_tiles(const __grid_constant__ MatVecArgs args, const __grid_constant__ MatVecSplit split) {
  using Lane = TileLane<Form, kGrouped, kSingle>;
  using S = TileLayout<Form, kGrouped, kSingle>;
  extern __shared__ __align__(16) std::byte memory[];
  let_next_in();
  const WarpPlace place(split);
  std::uint32_t lane = threadIdx.x % 32;
  keep(lane);
  const std::uint32_t base = shared_address(memory);
  std::uint32_t ring = base + place.warp * (S::kStages * S::kBytes);
  keep(ring);
  TileLoader<Form, kGrouped, kSingle> loader(args, split, place, lane);
  const int early_stages = blockIdx.x < gridDim.x / 2 ? split.first_early_stages : split.early_stages;
#pragma unroll 1
  for (int i = 0; i < early_stages; ++i) loader.copy_next(args, split, place, lane, ring + i * S::kBytes);

  MatVecOutputs<S::kRows, kTileWarps, Form::Scales::kRow && !kGrouped> outputs(args, split, place, base);
  Lane columns(args, split, place, lane, base + split.own_at + place.warp * split.own_bytes);
  std::uint32_t tile_rows = MatrixWalk::tile_rows(args, split, place),
                sums = outputs.sums() + lane;  // four lanes share a row
  keep(tile_rows), keep(sums);
  const TileActivations<Lane, kSingle> x(args, split, place);
  typename Lane::Ahead ahead;
  const auto meanwhile = [&] {
#pragma unroll 1
    for (int i = early_stages; i < S::kStages - 1; ++i) {
      loader.copy_next(args, split, place, lane, ring + i * S::kBytes);
    }
    outputs.fetch();
    if constexpr (Lane::kDecodesAhead) {
      wait_for_copies<S::kStages - 2>();
      __syncwarp();
      columns.decode(ring, ahead);
    }
  };
  if (args.q != nullptr) {
    x.fetch(columns, meanwhile);
  } else {
    const float squares = warp_sum(x.quantize(columns, meanwhile));
    if (lane == 0) store_shared(outputs.squares(), __float_as_uint(squares));
  }
  __syncwarp();
  columns.load_activations(0);
  multiply_tiles<kSingle>(args, split, place, lane, columns, loader, ring, ahead, tile_rows, sums);
  wait_for_copies<0>();
  __syncthreads();
  outputs.finish(args.q == nullptr && args.norm_weight != nullptr);
}

/// Sets how many stages are filled before the previous kernel has ended. Activations are loaded after them and have to
/// wait for them: filling all stages would cost more than it saves. Blocks of the first half start first, when blocks
/// of the previous kernel end, and have time for more; with slow codes the other blocks would only fall further behind.
template <class Form, class S>
void set_early_stages(bool single, const MatVecArgs& args, MatVecSplit& split) {
  using Dot = CodeDot<typename Form::Codes>;
  split.early_stages = split.first_early_stages = args.q == nullptr || S::kBytes < 2000 ? 1 : 2;
  const bool is_quick = !Dot::kIsSlow && Form::Scales::kParts == 1 && Form::Codes::kBits > 1;
  if (single && is_quick && args.q != nullptr) split.first_early_stages = S::kStages - 1;
}

template <class Form, bool kGrouped, bool kSingle>
MatVecSplit split_tiles(const MatVecArgs& args, const SplitNeeds& matrices) {
  using S = TileLayout<Form, kGrouped, kSingle>;
  using Lane = TileLane<Form, kGrouped, kSingle>;
  SplitNeeds needs = tile_needs<Form, kGrouped, S>(args, matrices);
  needs.warps = kTileWarps;
  needs.x_bytes = Lane::kXBytes;
  needs.x_rest = Lane::kZeroBytes;
  MatVecSplit split = split_matvec(needs);
  set_early_stages<Form, S>(kSingle, args, split);
  return split;
}

/// Calls f(kernel, split) with the kernel for the matrices, and returns its result.
template <class Form, bool kGrouped, class F>
auto with_tiles(const MatVecArgs& args, const SplitNeeds& matrices, F f) {
  const bool single = has_single_tiles<Form, kGrouped>(args);
  return single ? f(matvec_tiles<Form, kGrouped, true>, split_tiles<Form, kGrouped, true>(args, matrices))
                : f(matvec_tiles<Form, kGrouped, false>, split_tiles<Form, kGrouped, false>(args, matrices));
}

}  // namespace imago::kernels::cuda
