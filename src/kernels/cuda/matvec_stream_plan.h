#pragma once

// How the streaming matvec divides its work: plain arithmetic, for the launch on the host.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/host_device.h"

namespace imago::kernels::cuda {

inline constexpr int kMatVecProducts = 4;  ///< of a launch, at most

inline constexpr std::uint32_t kStreamSharedBytes = 226 << 10;  ///< of a multiprocessor, for all blocks there
inline constexpr std::uint32_t kStreamReservedBytes = 1 << 10;  ///< of each block, by the system

/// What a form and its matrices ask of a plan. A warp takes a tile of `tile_rows` rows at a time, of its columns: one
/// piece of a row, or several in turn. Between these there are those of the other warps, so that what all read at a
/// time lies together.
struct StreamNeeds {
  std::uint32_t warps = 0;   ///< of a block, at most; two such blocks fill a multiprocessor
  std::uint32_t pieces = 0;  ///< of a row
  bool takes_turns = false;  ///< a warp may have several pieces
  std::uint32_t tile_rows = 1;
  std::uint32_t ring_bytes = 0;              ///< of a warp
  std::uint32_t x_bytes = 0;                 ///< that a warp keeps of the activations of a piece
  std::uint32_t x_rest = 0;                  ///< and besides
  std::uint32_t rows[kMatVecProducts] = {};  ///< of the products
  std::uint32_t row_bytes[3] = {};           ///< in codes, high, scales
  std::uint32_t piece_bytes[3] = {};         ///< of a piece
  bool gated = false;
  std::uint32_t multiprocessors = 0;
};

/// The tiles of a product, dealt out to the teams: `each`, and one more to the first `more`, counted from team `first`.
struct Deal {
  std::uint32_t first = 0, each = 0, more = 0;
};

/// Warps lie in a grid: `column_warps` of a block share rows, each with its own columns, and are a team. The teams of
/// all blocks take tiles in turn: what is read at a time lies together, which memory likes.
struct StreamPlan {
  std::uint32_t column_warps = 0, row_warps = 0;  ///< of a block: warps of a team, teams. None: nothing for this kernel
  std::uint32_t pieces = 0, warp_pieces = 0;      ///< of a row, and of them those of a warp
  std::uint32_t blocks = 0;
  std::uint32_t column_parts = 0;  ///< 256 / column_warps, rounded up: divides small numbers
  std::uint32_t teams = 0;         ///< of all blocks
  /// Steps that are copied before the kernel before has ended, by blocks of the first half and by others; for tiles,
  /// whose plan sets them.
  int first_early_steps = 0, early_steps = 0;
  Deal deals[kMatVecProducts];
  std::uint32_t team_tiles = 0;  ///< of all products, at most
  std::uint32_t row_bytes[3] = {};
  std::uint32_t piece_steps[3] = {};  ///< from a warp's piece of a tile to its next one
  std::size_t jumps[3] = {};          ///< from its last one to the first of the team's next tile
  std::uint32_t own_bytes = 0;  ///< of a warp, behind the rings: activations, then sums, which take the place of those
                                ///< that a warp has in registers
  std::uint32_t sums_at = 0;    ///< in these
  std::uint32_t own_at = 0, squares_at = 0, bytes = 0;  ///< of shared memory; rings begin at 0
};

/// What a team has of a product: `count` tiles from `first` on, StreamPlan::teams apart. Teams are numbered through all
/// blocks.
struct TeamTiles {
  std::uint32_t first, count;

  IMAGO_HD TeamTiles(const StreamPlan& plan, int product, std::uint32_t team) noexcept {
    const Deal& deal = plan.deals[product];
    first = team >= deal.first ? team - deal.first : team + plan.teams - deal.first;
    count = deal.each + (first < deal.more ? 1 : 0);
  }
};

/// The team of a block to which a warp belongs.
IMAGO_HD std::uint32_t team_of_warp(const StreamPlan& plan, std::uint32_t warp) noexcept {
  return warp * plan.column_parts >> 8;
}

/// With `rounds` times as many blocks as there is room for at a time. `alone`: a block has a multiprocessor for itself.
inline StreamPlan plan_stream(const StreamNeeds& needs, std::uint32_t rounds, bool alone) {
  StreamPlan plan;
  const auto divide_up = [](std::uint32_t a, std::uint32_t b) { return (a + b - 1) / b; };
  std::uint32_t tiles = 0;
  for (const std::uint32_t rows : needs.rows) tiles += divide_up(rows, needs.tile_rows);
  plan.pieces = needs.pieces;
  plan.warp_pieces = divide_up(needs.pieces, needs.warps);
  if (tiles == 0 || (plan.warp_pieces > 1 && !needs.takes_turns)) return plan;
  const std::uint32_t column_warps = divide_up(needs.pieces, plan.warp_pieces);
  plan.row_warps = needs.warps / column_warps;
  plan.column_parts = divide_up(256, column_warps);
  const std::uint32_t together = alone ? 1 : 2 * needs.warps / (column_warps * plan.row_warps);  // on a multiprocessor
  plan.blocks = std::min(rounds * together * needs.multiprocessors, divide_up(tiles, plan.row_warps));
  plan.teams = plan.blocks * plan.row_warps;
  plan.team_tiles = divide_up(tiles, plan.teams);
  for (std::uint32_t p = 0, before = 0; p < kMatVecProducts; ++p) {
    const std::uint32_t own = divide_up(needs.rows[p], needs.tile_rows);
    plan.deals[p] = {before % plan.teams, own / plan.teams, own % plan.teams};
    before += own;
  }
  for (int i = 0; i < 3; ++i) {
    plan.row_bytes[i] = needs.row_bytes[i];
    plan.piece_steps[i] = column_warps * needs.piece_bytes[i];
    plan.jumps[i] =
        std::size_t{plan.teams} * needs.tile_rows * needs.row_bytes[i] - (plan.warp_pieces - 1) * plan.piece_steps[i];
  }
  const std::uint32_t outputs = plan.team_tiles * needs.tile_rows, sums = outputs * (needs.gated ? 2 : 1) * 4;
  const std::uint32_t x_bytes = plan.warp_pieces * needs.x_bytes + needs.x_rest;
  plan.sums_at = plan.warp_pieces == 1 ? 0 : x_bytes;
  plan.own_bytes = (std::max(x_bytes, plan.sums_at + sums) + 15) / 16 * 16;
  plan.own_at = column_warps * plan.row_warps * needs.ring_bytes;
  plan.squares_at = plan.own_at + column_warps * plan.row_warps * plan.own_bytes;
  plan.bytes = plan.squares_at + needs.warps * 4;
  if (plan.bytes + kStreamReservedBytes <= kStreamSharedBytes / together) plan.column_warps = column_warps;
  return plan;
}

/// Results are kept until the end of a block, so more blocks have fewer.
inline StreamPlan plan_stream(const StreamNeeds& needs) {
  StreamPlan plan;
  for (const bool alone : {false, true}) {
    for (std::uint32_t rounds = 1; rounds <= 64 && plan.column_warps == 0; rounds *= 2) {
      plan = plan_stream(needs, rounds, alone);
    }
  }
  return plan;
}

}  // namespace imago::kernels::cuda
