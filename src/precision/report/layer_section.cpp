// Layers by their error: a map to look at, a table to look up.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "precision/report/layer_grid.h"
#include "precision/report/sections.h"
#include "precision/report/words.h"

namespace imago::precision {

namespace {

/// Errors to shades, evenly on a logarithmic scale between the least and the largest there is.
class ErrorShades {
 public:
  explicit ErrorShades(std::span<const ComparedTensor* const> layers) {
    for (const ComparedTensor* layer : layers) {
      const double error = layer->relative_rmse.value_or(0);
      if (!(error > 0) || !std::isfinite(error)) continue;
      least_ = std::min(least_, error);
      most_ = std::max(most_, error);
    }
  }
  bool any() const noexcept { return most_ > 0; }
  double least() const noexcept { return least_; }
  double most() const noexcept { return most_; }

  int operator()(double error) const {
    if (!(error > 0)) return 0;
    // A map of errors that are all alike should look so.
    const double span = std::max(std::log(most_ / least_), std::log(2.0));
    const double share = std::clamp(std::log(error / least_) / span, 0.0, 1.0);
    return 1 + static_cast<int>(std::lround(share * (kShades - 2)));
  }

 private:
  double least_ = std::numeric_limits<double>::infinity(), most_ = 0;
};

std::string tooltip_of(const ComparedTensor& layer) {
  std::string text = fmt::format("{}: {} → {}", layer.name, layer.type_a, layer.type_b);
  if (layer.relative_rmse) text += fmt::format(", relative error {} %", figure_text(100 * *layer.relative_rmse));
  if (layer.cosine) text += fmt::format(", cosine {:.6f}", *layer.cosine);
  if (!layer.problem.empty()) text += fmt::format(" ({})", layer.problem);
  return text;
}

void write_legend(HtmlWriter& html, const ErrorShades& shades) {
  html.open("p", {{"class", "legend"}});
  html.text(fmt::format("{} % ", short_text(100 * shades.least())));
  for (int shade = 1; shade < kShades; ++shade) {
    html.leaf("span", "", {{"class", fmt::format("swatch h{}", shade)}});
  }
  html.text(fmt::format(" {} %", short_text(100 * shades.most()))).close("p").line_break();
}

}  // namespace

void write_shaded_grid(HtmlWriter& html, std::span<const std::string> names, std::string_view caption,
                       const std::function<ShadedCell(std::size_t index)>& cell) {
  const LayerGrid grid = make_layer_grid(names);
  if (!grid.rows.empty()) {
    html.open("div", {{"class", "scroll"}}).open("table", {{"class", "heat"}});
    html.leaf("caption", caption).open("thead").open("tr").leaf("th", "block", {{"scope", "col"}});
    for (const std::string& column : grid.columns) html.leaf("th", column, {{"scope", "col"}});
    html.close("tr").close("thead").line_break().open("tbody");
    for (const LayerGrid::Row& row : grid.rows) {
      html.open("tr").leaf("th", std::to_string(row.block), {{"scope", "row"}});
      for (const std::size_t index : row.cells) {
        if (index == LayerGrid::kNone) {
          html.leaf("td", "");
          continue;
        }
        const ShadedCell shaded = cell(index);
        html.leaf("td", shaded.text, {{"class", fmt::format("h{}", shaded.shade)}, {"title", shaded.tooltip}});
      }
      html.close("tr").line_break();
    }
    html.close("tbody").close("table").close("div").line_break();
  }
  if (grid.outside.empty()) return;
  html.open("ul", {{"class", "tiles"}});
  for (const std::size_t index : grid.outside) {
    const ShadedCell shaded = cell(index);
    html.open("li", {{"class", fmt::format("h{}", shaded.shade)}, {"title", shaded.tooltip}});
    html.leaf("span", names[index], {{"class", "name"}}).text(" ").leaf("b", shaded.text).close("li");
  }
  html.close("ul").line_break();
}

void write_layer_section(HtmlWriter& html, std::span<const ComparedTensor> layers) {
  // Vectors keep their type as a rule; a column of zeros for each norm would hide the matrices.
  std::vector<const ComparedTensor*> shown;
  for (const ComparedTensor& layer : layers) {
    const bool changed = layer.relative_rmse.value_or(0) != 0 || !layer.problem.empty();
    if (layer.weights != 0 && (!layer.is_vector || changed)) shown.push_back(&layer);
  }
  if (shown.empty()) return;
  const ErrorShades shades(shown);
  html.open("section").leaf("h2", "Where the error is").line_break();
  html.leaf("p",
            shades.any() ? "The error of the weights of each tensor, relative to their own size: darker cells lost "
                           "more. Hover over a cell for its types and cosine."
                         : "No weight differs.",
            {{"class", "explain"}});
  html.line_break();
  if (shades.any()) write_legend(html, shades);
  std::vector<std::string> names;
  for (const ComparedTensor* layer : shown) names.push_back(layer->name);
  write_shaded_grid(html, names, "Relative error of the weights, in %", [&](std::size_t index) {
    const ComparedTensor& layer = *shown[index];
    const bool known = layer.relative_rmse.has_value();
    return ShadedCell{.text = known ? short_text(100 * *layer.relative_rmse) : "–",
                      .tooltip = tooltip_of(layer),
                      .shade = shades(layer.relative_rmse.value_or(0))};
  });
  html.close("section").line_break();
}

void write_layer_table(HtmlWriter& html, std::span<const ComparedTensor> layers) {
  if (layers.empty()) return;
  html.open("section").leaf("h2", "All layers").line_break();
  html.open("div", {{"class", "scroll tall"}, {"tabindex", "0"}}).open("table", {{"class", "sortable"}});
  html.open("thead").open("tr");
  const auto heading = [&](std::string_view text, bool number) {
    html.leaf("th", text, {{"scope", "col"}, {"class", number ? "number" : "word"}});
  };
  for (const char* text : {"name", "type in A", "type in B"}) heading(text, false);
  for (const char* text : {"weights", "bytes in A", "bytes in B", "cosine", "RMSE", "relative error"})
    heading(text, true);
  html.close("tr").close("thead").line_break().open("tbody");
  for (const ComparedTensor& layer : layers) {
    const auto number = [&](const std::string& text) { html.leaf("td", text, {{"class", "number"}}); };
    html.open("tr").open("th", {{"scope", "row"}}).leaf("code", layer.name);
    if (!layer.problem.empty()) html.text(" ").leaf("small", layer.problem);
    html.close("th").leaf("td", layer.type_a).leaf("td", layer.type_b);
    number(count_text(layer.weights));
    number(count_text(layer.bytes_a));
    number(count_text(layer.bytes_b));
    number(layer.cosine ? fmt::format("{:.6f}", *layer.cosine) : "–");
    number(figure_text(layer.rmse));
    number(layer.relative_rmse ? fmt::format("{} %", figure_text(100 * *layer.relative_rmse)) : "–");
    html.close("tr").line_break();
  }
  html.close("tbody").close("table").close("div").close("section").line_break();
}

}  // namespace imago::precision
