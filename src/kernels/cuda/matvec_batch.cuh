#pragma once

// The matvec of several tokens with coded weights and quantized activations, in the frame of matvec_split.cuh and with
// the stages of matvec_tile.cuh. Tensor cores take a group of eight rows of the matrix at a time:
//   rows of a      tokens; the other eight are zeros. Lane 4t + c has words 2c and 2c + 1 of token t
//   columns of b   rows of the sub-tile. Lane 4r + c has the same words of row r
//   results        lane 4t + c has those of token t with rows 2c and 2c + 1
// Each result is the sum of one group: halves of groups with their own scales are not for this kernel. A warp keeps the
// activations of its columns in registers. The scales of a tile are decoded once, those of two groups of each sub-tile
// by each lane, and then shared.

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cuda/matvec_products.cuh"
#include "kernels/cuda/matvec_tile.cuh"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

/// The fewest tokens for which this kernel is faster than others; 0: it is not for these weights.
template <class Form>
inline constexpr std::uint32_t kLeastBatchTokens = Form::Scales::kParts != 1   ? 0
                                                   : Form::Codes::kBytes == 32 ? 5
                                                                               : 2;

template <class Form, bool kGrouped, bool kSingle>
class BatchLane {
 public:
  using S = TileLayout<Form, kGrouped, kSingle, true>;
  using Codes = typename Form::Codes;
  using Scales = typename Form::Scales;
  static_assert(Scales::kParts == 1);
  /// Warps of a block. With one tile of a tile row for each warp there is room for a second block.
  static constexpr std::uint32_t kWarps = kSingle ? kTileWarps : 2 * kTileWarps;
  /// Tiles of a tile row whose activations fit into the registers of a warp.
  static constexpr int kMostTiles = kSingle ? 1 : std::max(1, 4 / S::kAcross);
  static constexpr int kXSubTiles = kMostTiles * S::kAcross;

  static constexpr bool kHasZero = Form::kZeroOfFormat != 0.0f || (Scales::kRow && !kAreLevels<Codes>);
  static constexpr bool kHasSum = Scales::kHasMin || kHasZero;
  /// Words stored with a group of a token: the scale of its activations, then their sum, which is multiplied with the
  /// zero point if there is one.
  static constexpr int kXWords = kHasSum ? 2 : 1;
  static constexpr std::uint32_t kEntryBytes = kXWords * 4,
                                 kSubTileXBytes = kSubTileGroups * kBatchTokens * kEntryBytes;
  static constexpr std::uint32_t kXBytes = S::kAcross * kSubTileXBytes;
  /// Decoded scales of a tile: [sub-tiles][scales, then what is subtracted][groups][rows]. Scales of rows are applied
  /// to the finished sums.
  static constexpr bool kSharesScales = !Scales::kRow || kGrouped;
  static constexpr std::uint32_t kPlaneBytes = kSubTileGroups * kSubTileRows * 4;
  static constexpr std::uint32_t kSubTileScaleBytes = (Scales::kHasMin ? 2 : 1) * kPlaneBytes;
  static constexpr std::uint32_t kScaleBytes = kSharesScales ? S::kSubTiles * kSubTileScaleBytes : 0;

  /// Sums of token lane / 4 with rows 2c and 2c + 1 of each sub-tile of a tile.
  struct Sums {
    float of[S::kDown][2] = {};
  };

  /// Computes what does not depend on the previous kernel. `own`: shared memory of the warp.
  __device__ __forceinline__ BatchLane(const MatVecArgs& args, const MatVecSplit& split, const WarpPlace& place,
                                       std::uint32_t lane, std::uint32_t own)
      : lane_(lane), entries_(own), planes_(own + split.warp_tiles * kXBytes), scales_(args, split, place, lane) {
    const std::uint32_t row = lane / 4;
    codes_at_ = row * S::kCodeStride + 4 * Codes::code_of(first_word());
    high_at_ = S::kHighAt + row * S::kHighStride + 4 * Codes::high_of(first_word());
    keep(codes_at_), keep(high_at_);
  }

  /// Loads the activations of the warp's columns: zeros where there is no column or no token.
  __device__ __forceinline__ void load_activations(const MatVecArgs& args, const MatVecSplit& split,
                                                   const WarpPlace& place) {
    const std::uint32_t groups = args.products[0].planes.groups, token = lane_ / 4;
    const std::uint32_t tiles = place.tiles(split);
    float2 scales[kXSubTiles][2];  // for groups 2c and 2c + 1
#pragma unroll
    for (int i = 0; i < kXSubTiles; ++i) {
      const std::uint32_t tile = i / S::kAcross, column = tile * split.column_warps + place.column;
      const std::uint32_t first = (column * S::kAcross + i % S::kAcross) * kSubTileGroups;
      const std::uint32_t count = tile >= tiles || token >= args.tokens || first >= groups ? 0 : groups - first;
      const std::size_t from = static_cast<std::size_t>(token) * groups + first;
#pragma unroll
      for (std::uint32_t g = 0; g < kSubTileGroups; ++g) load_words(args, from + g, g < count, x_[i][g]);
#pragma unroll
      for (std::uint32_t u = 0; u < 2; ++u) {
        const std::uint32_t g = 2 * (lane_ % 4) + u;
        scales[i][u] = g < count ? reinterpret_cast<const float2*>(args.scales)[from + g] : float2{0, 0};
      }
    }
#pragma unroll
    for (int i = 0; i < kXSubTiles; ++i) {
      if (static_cast<std::uint32_t>(i / S::kAcross) < split.warp_tiles) store_entries(args, i, scales[i]);
    }
  }

  /// Adds the products with a tile, number kTile of the warp's tiles in a tile row. `stage`: address in shared memory.
  template <int kTile>
  __device__ __forceinline__ void add_products(std::uint32_t stage, Sums& sums) {
    if constexpr (kSharesScales) {
      scales_.go_to(kTile);
#pragma unroll
      for (int i = 0; i < S::kSubTiles; ++i) share_scales(stage, i / S::kAcross, i % S::kAcross);
      __syncwarp();
    }
#pragma unroll
    for (int i = 0; i < S::kSubTiles; ++i) {
#pragma unroll
      for (int g = 0; g < static_cast<int>(kSubTileGroups); ++g) {
        add_group(stage, i / S::kAcross, i % S::kAcross, g, kTile * S::kAcross + i % S::kAcross,
                  sums.of[i / S::kAcross]);
      }
    }
  }

 private:
  /// Dot products with the two words of a group that this lane takes.
  __device__ __forceinline__ int first_word() const { return static_cast<int>(lane_ % 4 * 2); }

  __device__ __forceinline__ void load_words(const MatVecArgs& args, std::size_t group, bool is_there,
                                             std::uint32_t (&words)[2]) const {
    const uint2* const from = reinterpret_cast<const uint2*>(args.q) + group * 4 + lane_ % 4;
    const uint2 both = is_there ? *from : uint2{0, 0};
    words[0] = both.x, words[1] = both.y;
  }

  /// The entries of a sub-tile: each lane stores those of groups 2c and 2c + 1 of its token.
  __device__ __forceinline__ void store_entries(const MatVecArgs& args, int i, const float2 (&scales)[2]) const {
    const float zero = Form::zero(args.products[0].planes);
#pragma unroll
    for (std::uint32_t u = 0; u < 2; ++u) {
      const std::uint32_t to = entry_at(i, 2 * (lane_ % 4) + u), x_scale = __float_as_uint(scales[u].x * Form::kStep);
      if constexpr (kHasSum) {
        store_shared(to, x_scale, __float_as_uint(Scales::kHasMin ? scales[u].y : scales[u].y * zero));
      } else {
        store_shared(to, x_scale);
      }
    }
  }
  /// The scale of the lane's token, for a group of sub-tile number i of the warp.
  __device__ __forceinline__ std::uint32_t entry_at(int i, std::uint32_t g) const {
    return entries_ + i * kSubTileXBytes + (g * kBatchTokens + lane_ / 4) * kEntryBytes;
  }

  __device__ __forceinline__ void share_scales(std::uint32_t stage, int down, int across) const {
    const PairBits bits = scales_.load(stage, down, across);
    const std::uint32_t planes = planes_ + (down * S::kAcross + across) * kSubTileScaleBytes;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const GroupScale s = Scales::read(bits.group<Scales>(u), bits.supers, bits.rows[u]);
      const std::uint32_t to = planes + ((2 * (lane_ % 4) + u) * kSubTileRows + lane_ / 4) * 4;
      store_shared(to, __float_as_uint(s.scale[0]));
      if constexpr (Scales::kHasMin) store_shared(to + kPlaneBytes, __float_as_uint(s.min[0]));
    }
  }

  /// Numbers of rows 2c and 2c + 1 for a group of a sub-tile, from one of its planes.
  __device__ __forceinline__ void read_plane(int sub_tile, int plane, int g, float (&values)[2]) const {
    std::uint32_t words[2];
    load_shared<2>(
        planes_ + sub_tile * kSubTileScaleBytes + plane * kPlaneBytes + (g * kSubTileRows + 2 * (lane_ % 4)) * 4,
        words);
    values[0] = __uint_as_float(words[0]), values[1] = __uint_as_float(words[1]);
  }

  /// The two words of this lane, of group number `group` in the tile.
  __device__ __forceinline__ void load_codes(std::uint32_t stage, int down, int group,
                                             std::uint32_t (&words)[2]) const {
    // Both may lie in one word of codes, or in neighbouring ones.
    constexpr int kCodeStep = Codes::code_of(1) - Codes::code_of(0), kHighStep = Codes::high_of(1) - Codes::high_of(0);
    std::uint32_t codes[kCodeStep + 1], high[kHighStep + 1] = {};
    load_shared<kCodeStep + 1>(stage + down * (kSubTileRows * S::kCodeStride) + codes_at_ + group * Codes::kBytes,
                               codes);
    if constexpr (Codes::kHighBytes > 0) {
      load_shared<kHighStep + 1>(stage + down * (kSubTileRows * S::kHighStride) + high_at_ + group * Codes::kHighBytes,
                                 high);
    }
    words[0] = Codes::word(codes[0], high[0], first_word());
    words[1] = Codes::word(codes[kCodeStep], high[kHighStep], first_word() + 1);
  }

  /// Group g of a sub-tile, whose activations are those of number i.
  __device__ __forceinline__ void add_group(std::uint32_t stage, int down, int across, int g, int i,
                                            float (&sums)[2]) const {
    std::uint32_t words[2], entry[kXWords];
    load_codes(stage, down, across * static_cast<int>(kSubTileGroups) + g, words);
    load_shared<kXWords>(entry_at(i, static_cast<std::uint32_t>(g)), entry);
    const float x_scale = __uint_as_float(entry[0]);
    const int sub_tile = down * S::kAcross + across;
    std::int32_t dots[4] = {};
    multiply_tokens<Codes::kSigned>(dots, {x_[i][g][0], 0, x_[i][g][1], 0}, words);
    float scale[2], min[2];
    if constexpr (kSharesScales) read_plane(sub_tile, 0, g, scale);
    if constexpr (Scales::kHasMin) read_plane(sub_tile, 1, g, min);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float value = x_scale * static_cast<float>(dots[r]);
      if constexpr (kHasZero) value -= __uint_as_float(entry[1]);
      sums[r] = kSharesScales ? sums[r] + scale[r] * value : sums[r] + value;
      if constexpr (Scales::kHasMin) sums[r] -= min[r] * __uint_as_float(entry[1]);
    }
  }

  std::uint32_t lane_, entries_, planes_;
  std::uint32_t codes_at_, high_at_;  // in a stage
  TileScales<Form, kGrouped, S> scales_;
  std::uint32_t x_[kXSubTiles][kSubTileGroups][2];
};

template <class Form, bool kGrouped, bool kSingle>
__global__ void __launch_bounds__(BatchLane<Form, kGrouped, kSingle>::kWarps * 32, kSingle ? 2 : 1)
    matvec_batch(const __grid_constant__ MatVecArgs args, const __grid_constant__ MatVecSplit split) {
  using Lane = BatchLane<Form, kGrouped, kSingle>;
  using S = typename Lane::S;
  extern __shared__ __align__(16) std::byte memory[];
  let_next_in();
  const WarpPlace place(split);
  std::uint32_t lane = threadIdx.x % 32;
  keep(lane);
  const std::uint32_t base = shared_address(memory);
  std::uint32_t ring = base + place.warp * (S::kStages * S::kBytes);
  keep(ring);
  TileLoader<Form, kGrouped, kSingle, true> loader(args, split, place, lane);
  for (int i = 0; i < S::kStages - 1; ++i) loader.copy_next(args, split, place, lane, ring + i * S::kBytes);

  MatVecOutputs<S::kRows, Lane::kWarps, !Lane::kSharesScales, kBatchTokens> outputs(args, split, place, base);
  Lane columns(args, split, place, lane, base + split.own_at + place.warp * split.own_bytes);
  std::uint32_t tile_rows = MatrixWalk::tile_rows(args, split, place);
  // Four lanes share a token, and each has two rows of it.
  std::uint32_t sums_at = outputs.sums() + 8 * lane;
  keep(tile_rows), keep(sums_at);
  wait_for_previous();
  outputs.fetch();
  columns.load_activations(args, split, place);
  __syncwarp();

  const std::uint32_t end = ring + S::kStages * S::kBytes, tiles = loader.tiles();
  std::uint32_t at = ring, free = end - S::kBytes;  // the next stage, the free one
  const auto add_tile = [&]<int kTile>(std::integral_constant<int, kTile>, typename Lane::Sums& sums) {
    if (kTile > 0 && static_cast<std::uint32_t>(kTile) >= tiles) return;
    wait_for_copies<S::kStages - 2>();
    __syncwarp();
    loader.copy_next(args, split, place, lane, free);
    columns.template add_products<kTile>(at, sums);
    free = at;
    at = at + S::kBytes == end ? ring : at + S::kBytes;
  };
#pragma unroll 1
  for (; tile_rows > 0; --tile_rows) {
    typename Lane::Sums sums;
    [&]<int... kTiles>(std::integer_sequence<int, kTiles...>) {
      (add_tile(std::integral_constant<int, kTiles>(), sums), ...);
    }
    (std::make_integer_sequence<int, Lane::kMostTiles>());
#pragma unroll
    for (int down = 0; down < S::kDown; ++down) {
      store_shared(sums_at, __float_as_uint(sums.of[down][0]), __float_as_uint(sums.of[down][1]));
      sums_at += kBatchTokens * kSubTileRows * 4;
    }
  }
  wait_for_copies<0>();
  __syncthreads();
  outputs.finish(false);
}

template <class Form, bool kGrouped, bool kSingle>
MatVecSplit split_batch(const MatVecArgs& args, const SplitNeeds& matrices) {
  using Lane = BatchLane<Form, kGrouped, kSingle>;
  SplitNeeds needs = tile_needs<Form, kGrouped, typename Lane::S>(args, matrices);
  needs.warps = Lane::kWarps;
  needs.x_bytes = Lane::kXBytes;
  needs.x_rest = Lane::kScaleBytes;
  needs.keeps_x = true;
  needs.tokens = kBatchTokens;
  MatVecSplit split = split_matvec(needs, !kSingle);
  if (split.warp_tiles > Lane::kMostTiles) split.column_warps = 0;
  return split;
}

/// Calls f(kernel, split) with the kernel for the matrices, and returns its result. The split may be none.
template <class Form, bool kGrouped, class F>
auto with_batch(const MatVecArgs& args, const SplitNeeds& matrices, F f) {
  return has_single_tiles<Form, kGrouped>(args)
             ? f(matvec_batch<Form, kGrouped, true>, split_batch<Form, kGrouped, true>(args, matrices))
             : f(matvec_batch<Form, kGrouped, false>, split_batch<Form, kGrouped, false>(args, matrices));
}

}  // namespace imago::kernels::cuda
