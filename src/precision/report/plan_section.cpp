// Which type each tensor has, and what each type takes of the file.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "precision/report/charts.h"
#include "precision/report/sections.h"
#include "precision/report/words.h"

namespace imago::precision {

namespace {

struct TypeShare {
  std::string type;
  std::uint64_t tensors = 0, weights = 0, bytes = 0;
  double bits() const { return weights == 0 ? 0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(weights); }
};

/// Wider types are stronger colours: 1 bit is shade 1, 16 bits and more the last.
int shade_of_bits(double bits) {
  const double share = std::log2(std::clamp(bits, 1.0, 16.0)) / 4;
  return 1 + static_cast<int>(std::lround(share * (kShades - 2)));
}

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

void write_share_table(HtmlWriter& html, std::span<const TypeShare> shares, std::uint64_t total) {
  html.open("div", {{"class", "scroll"}}).open("table").open("thead").open("tr");
  html.leaf("th", "type", {{"scope", "col"}});
  for (const char* text : {"tensors", "weights", "bits per weight", "bytes", "share"}) {
    html.leaf("th", text, {{"scope", "col"}, {"class", "number"}});
  }
  html.close("tr").close("thead").line_break().open("tbody");
  for (const TypeShare& share : shares) {
    const auto number = [&](const std::string& text) { html.leaf("td", text, {{"class", "number"}}); };
    html.open("tr").open("th", {{"scope", "row"}});
    html.leaf("span", "", {{"class", fmt::format("swatch h{}", shade_of_bits(share.bits()))}}).text(" ");
    html.text(share.type).close("th");
    number(count_text(share.tensors));
    number(count_text(share.weights));
    number(fmt::format("{:.2f}", share.bits()));
    number(count_text(share.bytes));
    number(share_text(total == 0 ? 0 : static_cast<double>(share.bytes) / static_cast<double>(total)));
    html.close("tr").line_break();
  }
  html.close("tbody").close("table").close("div").line_break();
}

}  // namespace

void draw_type_shares(HtmlWriter& html, std::span<const TypedTensor> plan) {
  const std::vector<TypeShare> shares = shares_of(plan);
  double total = 0;
  for (const TypeShare& share : shares) total += static_cast<double>(share.bytes);
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
    html.empty("rect", {{"x", number_text(x)},
                        {"y", "0"},
                        {"width", number_text(std::max(0.5, width - 1))},
                        {"height", number_text(kHeight)},
                        {"class", fmt::format("f{}", shade_of_bits(share.bits()))}});
    html.close("g");
    x += width;
  }
  html.close("svg").line_break();
}

void write_plan_section(HtmlWriter& html, std::span<const TypedTensor> plan, std::string_view heading) {
  if (plan.empty()) return;
  html.open("section").leaf("h2", heading.empty() ? "Types of the layers" : heading).line_break();
  html.leaf("p", "Tensors that matter more get more bits: stronger colours are wider types.", {{"class", "explain"}});
  const std::vector<TypeShare> shares = shares_of(plan);
  std::uint64_t total = 0;
  for (const TypeShare& share : shares) total += share.bytes;
  html.open("figure");
  draw_type_shares(html, plan);
  html.close("figure");
  write_share_table(html, shares, total);
  std::vector<std::string> names;
  for (const TypedTensor& tensor : plan) names.push_back(tensor.name);
  write_shaded_grid(html, names, "Type of each tensor", [&](std::size_t index) {
    const TypedTensor& tensor = plan[index];
    const double bits =
        tensor.weights == 0 ? 0 : 8.0 * static_cast<double>(tensor.bytes) / static_cast<double>(tensor.weights);
    return ShadedCell{.text = tensor.type,
                      .tooltip = fmt::format("{}: {}, {:.2f} bits per weight, {}", tensor.name, tensor.type, bits,
                                             bytes_text(tensor.bytes)),
                      .shade = shade_of_bits(bits)};
  });
  html.close("section").line_break();
}

}  // namespace imago::precision
