#pragma once

// The tables of a page, its style sheet and its script.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "imago/precision.h"
#include "precision/report/html_writer.h"

namespace imago::precision {

/// Tensors by block and role, as far as their names tell: "blk.3.attn_q.weight" is column "q" of row 3. Cells are
/// indices into the names that the grid was made from; kNone if a block has no such tensor.
struct LayerGrid {
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  struct Row {
    std::size_t block = 0;
    std::vector<std::size_t> cells;  ///< one per column
  };

  std::vector<std::string> columns;  ///< "q", "gate", "self_attn.q_proj"
  std::vector<Row> rows;             ///< by block
  std::vector<std::size_t> outside;  ///< tensors outside blocks, in their order
};

/// Roles in the order of computation, then unknown ones in the order of their first use.
LayerGrid make_layer_grid(std::span<const std::string> names);

/// How much each layer lost.
void write_layer_section(HtmlWriter& html, std::span<const ComparedTensor> layers);
/// All figures of all layers.
void write_layer_table(HtmlWriter& html, std::span<const ComparedTensor> layers);
/// The type of each tensor.
void write_plan_section(HtmlWriter& html, std::span<const TypedTensor> plan, std::string_view heading);

/// The style sheet of a page: light and dark, wide and narrow, screen and paper.
std::string_view page_style() noexcept;

/// Sorts tables of class "sortable" by a click on a heading. The page is complete without it.
std::string_view page_script() noexcept;

}  // namespace imago::precision
