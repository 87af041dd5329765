#pragma once

// Products of packed weights with few tokens: the arguments of the kernels, and how the work of the one-token kernels
// is split. Weights are read once, so their bytes are the cost.
//
// A matrix is cut into *tiles*, the rows and columns that a warp multiplies at a time. Tiles side by side form a *tile
// row*. A warp streams its tiles through a ring of *stages* in shared memory (see matvec_split.cuh).

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "device/cuda/stream.h"
#include "kernels/cuda/host_device.h"
#include "kernels/cuda/layout.h"
#include "kernels/ops_args.h"

namespace imago::kernels::cuda {

inline constexpr int kMatVecProducts = 4;         ///< of a launch, at most
inline constexpr std::uint32_t kBatchTokens = 8;  ///< of a launch, at most: as many as kMatVecTokens

/// One product of a launch. With `gated`, y = activation(planes x + bias) · (up x).
struct MatVecProduct {
  Planes planes, up;
  float* y;
  const float* bias;  ///< null: none
  std::uint32_t y_stride;
  float scale;
  Activation activation;
  bool accumulate, gated;
};

/// A launch. All matrices have the same device layout and number of columns.
struct MatVecArgs {
  MatVecProduct products[kMatVecProducts];
  std::int32_t count;
  std::uint32_t tokens;
  const float* x;            ///< [tokens][x_stride], zeros after the columns up to whole groups
  std::uint32_t x_stride;    ///< a multiple of 4
  const std::int8_t* q;      ///< quantized activations: [tokens][groups · 32]
  const float2_pod* scales;  ///< their scales: [tokens][groups]
  // If q is null, stream_matvec quantizes x itself, or x / rms(x) · norm_weight.
  const float* norm_weight;  ///< null: no norm
  float norm_eps;
  // Set by launch_matvec. Kernels would recompute them at each use for lack of registers.
  std::uint32_t rows;       ///< of all products
  std::uint32_t vectors;    ///< code vectors of a row
  std::uint32_t stride;     ///< between vectors of activations in shared memory
  std::uint32_t scales_at;  ///< bytes from the activations to their scales
  std::uint32_t rings_at;   ///< bytes from the activations to the rings of the warps
};

/// Splits off the arguments of the next `most` tokens.
inline MatVecArgs take_tokens(MatVecArgs& args, std::uint32_t most) {
  MatVecArgs now = args;
  now.tokens = std::min(args.tokens, most);
  const std::size_t groups = std::size_t{now.tokens} * args.products[0].planes.groups;
  if (args.x != nullptr) args.x += static_cast<std::size_t>(now.tokens) * args.x_stride;
  if (args.q != nullptr) args.q += groups * kGroup, args.scales += groups;
  for (int p = 0; p < args.count; ++p) {
    args.products[p].y += static_cast<std::size_t>(now.tokens) * args.products[p].y_stride;
  }
  args.tokens -= now.tokens;
  return now;
}

/// What a launch needs to know about its device.
struct LaunchFacts {
  int multiprocessors = 132;
  std::uint32_t shared_bytes = 90 << 10;  ///< most dynamic shared memory of a block
};

/// Queues products for few tokens: matvec_few.cuh. `Form`: see decode.cuh. With `int8`, coded layouts take
/// quantized activations.
template <class Form>
void launch_matvec(MatVecArgs args, bool int8, const LaunchFacts& facts, CUstream_st* stream);

/// Queues products for one token, or for up to kBatchTokens with coded layouts: matvec_stream.cuh. Coded layouts take
/// quantized activations, or quantize that of one token themselves (whole groups, aligned to 16 bytes). Returns false
/// and queues nothing if no such kernel is for these matrices.
template <class Form>
bool stream_matvec(const MatVecArgs& args, const LaunchFacts& facts, CUstream_st* stream);

// ---- the split of the kernels that stream tiles, computed on the host

inline constexpr std::uint32_t kSplitSharedBytes = 226 << 10;  ///< shared memory of a multiprocessor
inline constexpr std::uint32_t kSplitReservedBytes = 1 << 10;  ///< that the system takes for each block

/// What a device layout and the matrices of a launch require of a split.
struct SplitNeeds {
  std::uint32_t warps = 0;      ///< of a block, at most; two such blocks fill a multiprocessor
  std::uint32_t row_tiles = 0;  ///< tiles side by side in a tile row
  bool takes_turns = false;     ///< a warp may have several tiles of a tile row
  std::uint32_t rows_per_tile = 1;
  std::uint32_t ring_bytes = 0;  ///< of a warp
  std::uint32_t x_bytes = 0;     ///< of activations that a warp keeps for each of its tiles of a tile row
  std::uint32_t x_rest = 0;      ///< and once for all of them
  bool keeps_x = false;          ///< sums must not overwrite them, even if a warp has one tile of a tile row
  std::uint32_t tokens = 1;      ///< each output is so many sums
  std::uint32_t rows[kMatVecProducts] = {};  ///< of the products
  std::uint32_t row_bytes[3] = {};           ///< of a matrix row in the planes codes, high and scales
  std::uint32_t tile_bytes[3] = {};          ///< of one tile's columns in such a row
  bool gated = false;
  std::uint32_t multiprocessors = 0;
};

/// The tile rows of a product, shared out to the warp rows: `each` to all, and one more to the first `more`, counted
/// from warp row `first`.
struct TileShare {
  std::uint32_t first = 0, each = 0, more = 0;
};

/// How tiles are shared out to warps and blocks. The warps of a block form a grid of block_rows × column_warps. The
/// column_warps warps of a *warp row* share matrix rows: each takes every column_warps-th tile of a tile row, and their
/// sums are added at the end. The warp rows of all blocks take tile rows in turn, so that what is read at a time lies
/// together in memory.
struct MatVecSplit {
  std::uint32_t column_warps = 0, block_rows = 0;  ///< 0 column warps: this kernel is not for these matrices
  std::uint32_t row_tiles = 0, warp_tiles = 0;     ///< tiles of a tile row, and how many of them a warp takes
  std::uint32_t blocks = 0;
  std::uint32_t inverse_column_warps = 0;  ///< 256 / column_warps, rounded up: divides small numbers
  std::uint32_t warp_rows = 0;             ///< of all blocks
  /// Stages that are filled before the previous kernel has ended, in the first half of the blocks and in the others.
  /// Only used by tiles.
  int first_early_stages = 0, early_stages = 0;
  TileShare shares[kMatVecProducts];
  std::uint32_t most_tile_rows = 0;  ///< of a warp row in all products, at most
  std::uint32_t row_bytes[3] = {};
  std::uint32_t tile_steps[3] = {};  ///< from a tile of a warp to its next one in the same tile row
  std::size_t jumps[3] = {};  ///< from its last tile of a tile row to the first one of the warp row's next tile row
  // Shared memory: the rings of all warps, then own_bytes for each warp, with its activations and its sums. Activations
  // that a warp keeps in registers are overwritten by the sums.
  std::uint32_t own_bytes = 0, sums_at = 0;             ///< sums_at: offset in the warp's own bytes
  std::uint32_t own_at = 0, squares_at = 0, bytes = 0;  ///< offsets from the start of shared memory
};

/// The tile rows of a product that a warp row takes: `count` of them, from `first` on, MatVecSplit::warp_rows apart.
struct WarpTileRows {
  std::uint32_t first, count;

  IMAGO_HD WarpTileRows(const MatVecSplit& split, int product, std::uint32_t warp_row) noexcept {
    const TileShare& share = split.shares[product];
    first = warp_row >= share.first ? warp_row - share.first : warp_row + split.warp_rows - share.first;
    count = share.each + (first < share.more ? 1 : 0);
  }
};

/// The row of a warp in the grid of its block.
IMAGO_HD std::uint32_t block_row_of(const MatVecSplit& split, std::uint32_t warp) noexcept {
  return warp * split.inverse_column_warps >> 8;
}

/// Splits with `rounds` times as many blocks as run at a time. `alone`: a block has a multiprocessor for itself.
inline MatVecSplit split_matvec(const SplitNeeds& needs, std::uint32_t rounds, bool alone) {
  MatVecSplit split;
  const auto divide_up = [](std::uint32_t a, std::uint32_t b) { return (a + b - 1) / b; };
  std::uint32_t all = 0;
  for (const std::uint32_t rows : needs.rows) all += divide_up(rows, needs.rows_per_tile);
  split.row_tiles = needs.row_tiles;
  split.warp_tiles = divide_up(needs.row_tiles, needs.warps);
  if (all == 0 || (split.warp_tiles > 1 && !needs.takes_turns)) return split;
  const std::uint32_t column_warps = divide_up(needs.row_tiles, split.warp_tiles);
  split.block_rows = needs.warps / column_warps;
  split.inverse_column_warps = divide_up(256, column_warps);
  const std::uint32_t together =
      alone ? 1 : 2 * needs.warps / (column_warps * split.block_rows);  // on a multiprocessor
  split.blocks = std::min(rounds * together * needs.multiprocessors, divide_up(all, split.block_rows));
  split.warp_rows = split.blocks * split.block_rows;
  split.most_tile_rows = divide_up(all, split.warp_rows);
  for (std::uint32_t p = 0, before = 0; p < kMatVecProducts; ++p) {
    const std::uint32_t own = divide_up(needs.rows[p], needs.rows_per_tile);
    split.shares[p] = {before % split.warp_rows, own / split.warp_rows, own % split.warp_rows};
    before += own;
  }
  for (int i = 0; i < 3; ++i) {
    split.row_bytes[i] = needs.row_bytes[i];
    split.tile_steps[i] = column_warps * needs.tile_bytes[i];
    split.jumps[i] = std::size_t{split.warp_rows} * needs.rows_per_tile * needs.row_bytes[i] -
                     (split.warp_tiles - 1) * split.tile_steps[i];
  }
  const std::uint32_t outputs = split.most_tile_rows * needs.rows_per_tile * needs.tokens;
  const std::uint32_t sums = outputs * (needs.gated ? 2 : 1) * 4;
  const std::uint32_t x_bytes = split.warp_tiles * needs.x_bytes + needs.x_rest;
  split.sums_at = split.warp_tiles == 1 && !needs.keeps_x ? 0 : x_bytes;
  split.own_bytes = (std::max(x_bytes, split.sums_at + sums) + 15) / 16 * 16;
  split.own_at = column_warps * split.block_rows * needs.ring_bytes;
  split.squares_at = split.own_at + column_warps * split.block_rows * split.own_bytes;
  split.bytes = split.squares_at + needs.warps * 4;
  if (split.bytes + kSplitReservedBytes <= kSplitSharedBytes / together) split.column_warps = column_warps;
  return split;
}

/// Blocks keep their sums in shared memory until the end, so more blocks need less of it. `only_alone`: two blocks
/// never share a multiprocessor.
inline MatVecSplit split_matvec(const SplitNeeds& needs, bool only_alone = false) {
  MatVecSplit split;
  for (const bool alone : {only_alone, true}) {
    for (std::uint32_t rounds = 1; rounds <= 64 && split.column_warps == 0; rounds *= 2) {
      split = split_matvec(needs, rounds, alone);
    }
  }
  return split;
}

}  // namespace imago::kernels::cuda
