#pragma once

// The parts of a page that are tables.

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "imago/precision.h"
#include "precision/report/html_writer.h"

namespace imago::precision {

/// How strong a colour is, 0 to kShades - 1; the style sheet has a class for each, "h0" …
inline constexpr int kShades = 9;

struct ShadedCell {
  std::string text, tooltip;
  int shade = 0;
};

/// Names by block and role as a table of shaded cells, the others as tiles beside it. `cell` is asked for each name.
void write_shaded_grid(HtmlWriter& html, std::span<const std::string> names, std::string_view caption,
                       const std::function<ShadedCell(std::size_t index)>& cell);

/// Which layers lost how much.
void write_layer_section(HtmlWriter& html, std::span<const ComparedTensor> layers);
/// All figures of all layers.
void write_layer_table(HtmlWriter& html, std::span<const ComparedTensor> layers);
/// Which type each tensor has.
void write_plan_section(HtmlWriter& html, std::span<const TypedTensor> plan, std::string_view heading);

}  // namespace imago::precision
