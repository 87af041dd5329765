#pragma once

// Tensors by block and role, as far as their names tell: "blk.3.attn_q.weight" is column "q" of row 3.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace imago::precision {

/// Indices into the names that the grid was made of; kNone where a block has no such tensor.
struct LayerGrid {
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  struct Row {
    std::size_t block = 0;
    std::vector<std::size_t> cells;  ///< one per column
  };

  std::vector<std::string> columns;  ///< "q", "gate", "self_attn.q_proj"
  std::vector<Row> rows;             ///< by block
  std::vector<std::size_t> outside;  ///< tensors of no block, in their order
};

/// Roles in the order that data flows, unknown ones behind them in the order in which they come.
LayerGrid make_layer_grid(std::span<const std::string> names);

}  // namespace imago::precision
