#pragma once

// How the streaming matvec divides its work: plain arithmetic, for the launch on the host.

#include <cstdint>

#include "kernels/cuda/host_device.h"

namespace imago::kernels::cuda {

inline constexpr int kMatVecProducts = 4;  ///< of a launch, at most

inline constexpr std::uint32_t kStreamWarps = 16;              ///< of a block, at most
inline constexpr std::uint32_t kStreamRingBytes = 6656;        ///< of a warp, at most
inline constexpr std::uint32_t kStreamEndBytes = 12;           ///< of an output
inline constexpr std::uint32_t kStreamCodeBytes = 2112;        ///< of a warp's activations in shared memory
inline constexpr std::uint32_t kStreamScales = 64;             ///< of them
inline constexpr std::uint32_t kStreamBlockBytes = 112 << 10;  ///< two blocks on a multiprocessor

/// What a form and its matrices ask of a plan.
struct StreamNeeds {
  std::uint32_t units = 0;                   ///< of a row
  std::uint32_t lane_units = 0;              ///< that a lane has
  std::uint32_t step_rows = 1;               ///< that come and go together
  std::uint32_t ring_bytes = 0;              ///< of a warp
  std::uint32_t rows[kMatVecProducts] = {};  ///< of the products
  std::uint32_t row_bytes[4] = {};           ///< in codes, high, scales, supers
  bool keeps_form = false;                   ///< blocks have the int8 form of activations in shared memory
  bool gated = false;
  std::uint32_t multiprocessors = 0;
};

/// The rows of a product, dealt out to the teams: `each`, and one more to the first `more`, counted from team `first`.
struct Deal {
  std::uint32_t first = 0, each = 0, more = 0;
};

/// Warps lie in a grid: `column_warps` of a block share rows, each with its own columns, and are a team. The teams of
/// all blocks take outputs in turn: what is read at a time lies together, which memory likes.
struct StreamPlan {
  std::uint32_t column_warps = 0, row_warps = 0;  ///< of a block: warps of a team, teams. None: nothing for this kernel
  std::uint32_t blocks = 0;
  std::uint32_t column_parts = 0;  ///< 256 / column_warps, rounded up: divides small numbers
  std::uint32_t teams = 0;         ///< of all blocks
  bool keeps_form = false;         ///< see StreamNeeds
  int early_steps = 0;             ///< that are copied before the kernel before has ended; left to the launch
  Deal deals[kMatVecProducts];
  std::uint32_t team_outputs = 0;  ///< at most
  std::uint32_t row_bytes[4] = {};
  std::uint32_t jumps[4] = {};                                     ///< from a team's row to its next one
  std::uint32_t team_sums = 0;                                     ///< places for sums of a team, in floats
  std::uint32_t form_at = 0, ends_at = 0, sums_at = 0, bytes = 0;  ///< of shared memory; rings begin at 0
};

/// What a team has of a product: `count` rows from `first` on, StreamPlan::teams apart. Teams are numbered through all
/// blocks.
struct TeamRows {
  std::uint32_t first, count;

  IMAGO_HD TeamRows(const StreamPlan& plan, int product, std::uint32_t team) noexcept {
    const Deal& deal = plan.deals[product];
    first = team >= deal.first ? team - deal.first : team + plan.teams - deal.first;
    count = deal.each + (first < deal.more ? 1 : 0);
  }
};

/// The team of a block to which a warp belongs.
IMAGO_HD std::uint32_t team_of_warp(const StreamPlan& plan, std::uint32_t warp) noexcept {
  return warp * plan.column_parts >> 8;
}

inline StreamPlan plan_stream(const StreamNeeds& needs) {
  StreamPlan plan;
  const auto divide_up = [](std::uint32_t a, std::uint32_t b) { return (a + b - 1) / b; };
  const std::uint32_t column_warps = divide_up(needs.units, 32 * needs.lane_units);
  std::uint32_t outputs = 0;
  for (const std::uint32_t rows : needs.rows) outputs += rows;
  if (column_warps > kStreamWarps || outputs == 0) return plan;
  plan.keeps_form = needs.keeps_form;
  plan.row_warps = kStreamWarps / column_warps;
  plan.column_parts = divide_up(256, column_warps);
  plan.blocks = 2 * needs.multiprocessors;
  if (plan.blocks * plan.row_warps > outputs) plan.blocks = divide_up(outputs, plan.row_warps);
  plan.teams = plan.blocks * plan.row_warps;
  plan.team_outputs = divide_up(outputs, plan.teams);
  for (std::uint32_t p = 0, before = 0; p < kMatVecProducts; before += needs.rows[p++]) {
    plan.deals[p] = {before % plan.teams, needs.rows[p] / plan.teams, needs.rows[p] % plan.teams};
  }
  for (int i = 0; i < 4; ++i) {
    plan.row_bytes[i] = needs.row_bytes[i];
    plan.jumps[i] = plan.teams * needs.row_bytes[i];
  }
  // The rows of every matrix begin with a new step.
  plan.team_sums = (plan.team_outputs * (needs.gated ? 2 : 1) + kMatVecProducts * (needs.step_rows - 1)) * column_warps;
  plan.form_at = column_warps * plan.row_warps * needs.ring_bytes;
  plan.ends_at = plan.form_at;
  if (needs.keeps_form) plan.ends_at += column_warps * (kStreamCodeBytes + kStreamScales * 4) + kStreamWarps * 4;
  plan.sums_at = plan.ends_at + plan.row_warps * plan.team_outputs * kStreamEndBytes;
  plan.bytes = plan.sums_at + plan.row_warps * plan.team_sums * 4;
  if (plan.bytes <= kStreamBlockBytes) plan.column_warps = column_warps;
  return plan;
}

}  // namespace imago::kernels::cuda
