// The sections of a page: errors of layers as a map and as a table, and the types of tensors.

#include "precision/report/sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "precision/report/words.h"

namespace imago::precision {

namespace {

/// Roles by their names in GGUF, and a short form.
constexpr std::array<std::pair<std::string_view, std::string_view>, 13> kRoles = {{
    {"attn_qkv", "qkv"},
    {"attn_q", "q"},
    {"attn_k", "k"},
    {"attn_v", "v"},
    {"attn_output", "out"},
    {"ffn_gate_inp", "router"},
    {"ffn_gate", "gate"},
    {"ffn_gate_exps", "gates"},
    {"ffn_up", "up"},
    {"ffn_gate_up", "gate+up"},
    {"ffn_up_exps", "ups"},
    {"ffn_down", "down"},
    {"ffn_down_exps", "downs"},
}};

struct Place {
  std::size_t block;
  std::string_view role;
};

/// The first number in the name is the block, what follows is the role.
std::optional<Place> place_of(std::string_view name) {
  constexpr std::string_view kWeight = ".weight";
  if (name.ends_with(kWeight)) name.remove_suffix(kWeight.size());
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    std::size_t block = 0;
    const auto [stop, error] = std::from_chars(name.data() + begin, name.data() + end, block);
    if (error == std::errc() && stop == name.data() + end) {
      if (end == name.size()) return std::nullopt;
      return Place{block, name.substr(end + 1)};
    }
    begin = end + 1;
  }
  return std::nullopt;
}

std::size_t rank_of(std::string_view role) {
  const auto found = std::ranges::find(kRoles, role, [](const auto& entry) { return entry.first; });
  return static_cast<std::size_t>(found - kRoles.begin());
}

}  // namespace

LayerGrid make_layer_grid(std::span<const std::string> names) {
  LayerGrid grid;
  std::vector<std::string_view> roles;
  std::map<std::size_t, std::map<std::string_view, std::size_t>> blocks;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::optional<Place> place = place_of(names[i]);
    if (!place || !blocks[place->block].emplace(place->role, i).second) {
      grid.outside.push_back(i);
      continue;
    }
    if (std::ranges::find(roles, place->role) == roles.end()) roles.push_back(place->role);
  }
  std::ranges::stable_sort(roles, {}, rank_of);
  for (const std::string_view role : roles) {
    const std::size_t rank = rank_of(role);
    grid.columns.emplace_back(rank == kRoles.size() ? role : kRoles[rank].second);
  }
  for (const auto& [block, tensors] : blocks) {
    if (tensors.empty()) continue;
    LayerGrid::Row& row = grid.rows.emplace_back();
    row.block = block;
    for (const std::string_view role : roles) {
      const auto found = tensors.find(role);
      row.cells.push_back(found == tensors.end() ? LayerGrid::kNone : found->second);
    }
  }
  return grid;
}

namespace {

/// Number of colour strengths; the style sheet has a class for each, "h0" …
constexpr int kShades = 9;

struct ShadedCell {
  std::string text, tooltip;
  int shade = 0;
};

/// The positive values of a table, from the least to the largest.
struct ShadedRange {
  double least = std::numeric_limits<double>::infinity(), most = 0;
  void add(double value) {
    if (!(value > 0) || !std::isfinite(value)) return;
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

/// The shades from `palest` on belong to a range, evenly on a logarithmic scale.
int shade_in(const ShadedRange& range, double value, int palest) {
  const double share = std::clamp(std::log(value / range.least) / std::log(range.most / range.least), 0.0, 1.0);
  return palest + static_cast<int>(std::lround(share * (kShades - 1 - palest)));
}

/// Errors that are all alike look alike.
int shade_of_error(const ShadedRange& errors, double error) {
  return error > 0 ? shade_in({errors.least, std::max(errors.most, 2 * errors.least)}, error, 1) : 0;
}

/// Wider types have stronger colours. None is as pale as the background.
int shade_of_bits(const ShadedRange& bits, double value) {
  return value > 0 && bits.most > bits.least ? shade_in(bits, value, 2) : kShades / 2;
}

std::string tooltip_of(const ComparedTensor& layer) {
  std::string text = fmt::format("{}: {} → {}", layer.name, layer.type_a, layer.type_b);
  if (layer.relative_rmse) text += fmt::format(", relative error {} %", figure_text(100 * *layer.relative_rmse));
  if (layer.cosine) text += fmt::format(", cosine {:.6f}", *layer.cosine);
  if (!layer.problem.empty()) text += fmt::format(" ({})", layer.problem);
  return text;
}

void write_legend(HtmlWriter& html, const ShadedRange& errors) {
  html.open("p", {{"class", "legend"}});
  html.text(fmt::format("{} % ", short_text(100 * errors.least)));
  for (int shade = 1; shade < kShades; ++shade) {
    html.leaf("span", "", {{"class", fmt::format("swatch h{}", shade)}});
  }
  html.text(fmt::format(" {} %", short_text(100 * errors.most))).close("p").line_break();
}

/// Names by block and role as a table of shaded cells, the others as tiles next to it. `cell` makes the cell of a name.
template <class Cell>
void write_shaded_grid(HtmlWriter& html, std::span<const std::string> names, std::string_view caption, Cell&& cell) {
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

}  // namespace

void write_layer_section(HtmlWriter& html, std::span<const ComparedTensor> layers) {
  // Vectors usually keep their type; a column of zeros for each norm would hide the matrices.
  std::vector<const ComparedTensor*> shown;
  for (const ComparedTensor& layer : layers) {
    const bool changed = layer.relative_rmse.value_or(0) != 0 || !layer.problem.empty();
    if (layer.weights != 0 && (!layer.is_vector || changed)) shown.push_back(&layer);
  }
  if (shown.empty()) return;
  ShadedRange errors;
  std::vector<std::string> names;
  for (const ComparedTensor* layer : shown) {
    errors.add(layer->relative_rmse.value_or(0));
    names.push_back(layer->name);
  }
  open_section(html, "Where the error is",
               errors.most > 0
                   ? "The error of the weights of each tensor, relative to their own size: stronger colours lost more. "
                     "Hover over a cell for its types and cosine."
                   : "No weight differs.");
  if (errors.most > 0) write_legend(html, errors);
  write_shaded_grid(html, names, "Relative error of the weights, in %", [&](std::size_t index) {
    const ComparedTensor& layer = *shown[index];
    const bool known = layer.relative_rmse.has_value();
    return ShadedCell{.text = known ? short_text(100 * *layer.relative_rmse) : "–",
                      .tooltip = tooltip_of(layer),
                      .shade = shade_of_error(errors, layer.relative_rmse.value_or(0))};
  });
  html.close("section").line_break();
}

void write_layer_table(HtmlWriter& html, std::span<const ComparedTensor> layers) {
  if (layers.empty()) return;
  open_section(html, "All layers", "");
  open_table(html, TableKind::tall, {"name", "type in A", "type in B"},
             {"weights", "bytes in A", "bytes in B", "cosine", "RMSE", "relative error"});
  for (const ComparedTensor& layer : layers) {
    html.open("tr").open("th", {{"scope", "row"}}).leaf("code", layer.name);
    if (!layer.problem.empty()) html.text(" ").leaf("small", layer.problem);
    html.close("th").leaf("td", layer.type_a).leaf("td", layer.type_b);
    write_numbers(html, {count_text(layer.weights), count_text(layer.bytes_a), count_text(layer.bytes_b),
                         layer.cosine ? fmt::format("{:.6f}", *layer.cosine) : "–", figure_text(layer.rmse),
                         layer.relative_rmse ? fmt::format("{} %", figure_text(100 * *layer.relative_rmse)) : "–"});
    html.close("tr").line_break();
  }
  close_table(html);
  html.close("section").line_break();
}

namespace {

struct TypeShare {
  std::string type;
  std::uint64_t tensors = 0, weights = 0, bytes = 0;
  double bits() const { return bits_per_weight(bytes, weights); }
};

/// By bits per weight, widest first.
std::vector<TypeShare> shares_of(std::span<const TypedTensor> plan) {
  std::map<std::string, TypeShare> by_type;
  for (const TypedTensor& tensor : plan) {
    TypeShare& share = by_type[tensor.type];
    share.type = tensor.type;
    ++share.tensors;
    share.weights += tensor.weights;
    share.bytes += tensor.bytes;
  }
  std::vector<TypeShare> shares;
  for (auto& [type, share] : by_type) shares.push_back(std::move(share));
  std::ranges::stable_sort(shares, std::ranges::greater{}, &TypeShare::bits);
  return shares;
}

void write_share_table(HtmlWriter& html, std::span<const TypeShare> shares, const ShadedRange& bits, double total) {
  open_table(html, TableKind::plain, {"type"}, {"tensors", "weights", "bits per weight", "bytes", "share"});
  for (const TypeShare& share : shares) {
    html.open("tr").open("th", {{"scope", "row"}});
    html.leaf("span", "", {{"class", fmt::format("swatch h{}", shade_of_bits(bits, share.bits()))}}).text(" ");
    html.text(share.type).close("th");
    write_numbers(html,
                  {count_text(share.tensors), count_text(share.weights), fmt::format("{:.2f}", share.bits()),
                   count_text(share.bytes), share_text(total == 0 ? 0 : static_cast<double>(share.bytes) / total)});
    html.close("tr").line_break();
  }
  close_table(html);
  html.line_break();
}

/// The share of each type in the bytes of a model.
void draw_type_shares(HtmlWriter& html, std::span<const TypeShare> shares, const ShadedRange& bits, double total) {
  if (total == 0) return;
  constexpr double kWidth = 760, kHeight = 28;
  html.open("svg", {{"viewBox", fmt::format("0 0 {} {}", number_text(kWidth), number_text(kHeight))},
                    {"class", "chart strip"},
                    {"role", "img"},
                    {"preserveAspectRatio", "none"},
                    {"aria-label", "Bytes by type"}});
  html.leaf("desc", "The share of each type in the bytes of the model; the table below has the same figures");
  double x = 0;
  for (const TypeShare& share : shares) {
    const double width = kWidth * static_cast<double>(share.bytes) / total;
    html.open("g").leaf("title", fmt::format("{}: {}", share.type, bytes_text(share.bytes)));
    html.empty("rect", {{"x", x},
                        {"y", 0.0},
                        {"width", std::max(0.5, width - 1)},
                        {"height", kHeight},
                        {"class", fmt::format("f{}", shade_of_bits(bits, share.bits()))}});
    html.close("g");
    x += width;
  }
  html.close("svg").line_break();
}

}  // namespace

void write_plan_section(HtmlWriter& html, std::span<const TypedTensor> plan, std::string_view heading) {
  if (plan.empty()) return;
  open_section(html, heading.empty() ? "Types of the layers" : heading, "");
  html.leaf("p", "Tensors that matter more get more bits: stronger colours are wider types.", {{"class", "explain"}});
  const std::vector<TypeShare> shares = shares_of(plan);
  ShadedRange all_bits;
  double total = 0;
  for (const TypeShare& share : shares) {
    all_bits.add(share.bits());
    total += static_cast<double>(share.bytes);
  }
  html.open("figure");
  draw_type_shares(html, shares, all_bits, total);
  html.close("figure");
  write_share_table(html, shares, all_bits, total);
  std::vector<std::string> names;
  for (const TypedTensor& tensor : plan) names.push_back(tensor.name);
  write_shaded_grid(html, names, "Type of each tensor", [&](std::size_t index) {
    const TypedTensor& tensor = plan[index];
    const double bits = bits_per_weight(tensor.bytes, tensor.weights);
    return ShadedCell{.text = tensor.type,
                      .tooltip = fmt::format("{}: {}, {:.2f} bits per weight, {}", tensor.name, tensor.type, bits,
                                             bytes_text(tensor.bytes)),
                      .shade = shade_of_bits(all_bits, bits)};
  });
  html.close("section").line_break();
}

}  // namespace imago::precision
