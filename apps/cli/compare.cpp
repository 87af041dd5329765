// imago compare: how alike two networks are, layer by layer.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "commands.h"
#include "imago/error.h"
#include "imago/files.h"
#include "imago/system.h"
#include "network_files.h"
#include "output.h"
#include "shared_options.h"

namespace imago::cli {

namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string a, b;
  int threads = 0;
  bool strict = false;
  bool fp4_legacy = false;
  bool json = false;
};

/// A layer of the grid that both networks have.
struct Row {
  std::string name, layer_a, layer_b, type_a, type_b;
  float cosine = 0;
  std::optional<double> rmse;  // none where the weights are not of one kind
};

struct Findings {
  NetworkComparison comparison;
  std::vector<Row> rows;
  std::size_t only_a = 0, only_b = 0;  // layers at places that the other lacks
};

/// Calls visit for `layer` and all that is inside it, as far as weights go.
template <class Visit>
void for_each_weighted(const Layer& layer, Visit&& visit) {
  if (layer.weights) visit(layer);
  for (const Layer& branch : layer.branches) for_each_weighted(branch, visit);
  if (layer.filter_gate) for_each_weighted(*layer.filter_gate, visit);
  for (const Layer& inner : layer.sub_layers) for_each_weighted(inner, visit);
  if (layer.observed) for_each_weighted(*layer.observed, visit);
}

/// The type of its weights, "mixed" where layers inside it differ.
std::string type_of(const Layer& layer) {
  std::string type;
  for_each_weighted(layer, [&](const Layer& inner) {
    const std::string_view own = name(inner.config.dtype);
    type = type.empty() || type == own ? std::string(own) : "mixed";
  });
  return type.empty() ? std::string(name(layer.config.dtype)) : type;
}

/// The weights as it computes with them, those of layers inside it one after the other.
std::vector<float> weights_of(const Layer& layer) {
  std::vector<float> weights;
  for_each_weighted(layer, [&](const Layer& inner) {
    const std::vector<float> part = inner.weights->active(inner.config.scheme());
    weights.insert(weights.end(), part.begin(), part.end());
  });
  return weights;
}

std::optional<double> rmse_of(const Layer& a, const Layer& b) {
  if (a.config.type != b.config.type) return std::nullopt;
  const std::vector<float> ours = weights_of(a), theirs = weights_of(b);
  if (ours.size() != theirs.size()) return std::nullopt;
  return ours.empty() ? 0 : measure_distortion(ours, theirs).rmse;
}

std::string path_of(const Network& network, const Coordinates& at) {
  return fmt::format("layers.{}", network.index(at));
}

Findings find(const Network& a, const Network& b, bool strict) {
  Findings findings{.comparison = compare_networks(a, b, strict), .rows = {}};
  for (const NetworkComparison::Overlap& overlap : findings.comparison.overlaps) {
    const Layer& ours = a.layers()[a.index(overlap.at)];
    const Layer& theirs = b.layers()[b.index(overlap.at)];
    findings.rows.push_back({.name = path_of(a, overlap.at),
                             .layer_a = std::string(name(ours.config.type)),
                             .layer_b = std::string(name(theirs.config.type)),
                             .type_a = type_of(ours),
                             .type_b = type_of(theirs),
                             .cosine = overlap.similarity,
                             .rmse = rmse_of(ours, theirs)});
  }
  findings.only_a = a.layers().size() - findings.rows.size();
  findings.only_b = b.layers().size() - findings.rows.size();
  return findings;
}

Json to_json(const Findings& findings, const Network& a, const Network& b) {
  Json layers = Json::array(), shifts = Json::array();
  for (const Row& row : findings.rows) {
    layers.push_back({{"name", row.name},
                      {"type_a", row.type_a},
                      {"type_b", row.type_b},
                      {"cosine", row.cosine},
                      {"rmse", row.rmse ? Json(*row.rmse) : Json(nullptr)},
                      {"layer_a", row.layer_a},
                      {"layer_b", row.layer_b}});
  }
  const auto place = [](const Coordinates& at) { return Json{at.z, at.y, at.x, at.l}; };
  for (const LogicShift& shift : findings.comparison.logic_shifts) {
    shifts.push_back({{"source", path_of(a, shift.source)},
                      {"target", path_of(b, shift.target)},
                      {"overlap", shift.overlap},
                      {"source_at", place(shift.source)},
                      {"target_at", place(shift.target)}});
  }
  return {{"overall", findings.comparison.overall},
          {"layers", layers},
          {"logic_shifts", shifts},
          {"only_a", findings.only_a},
          {"only_b", findings.only_b}};
}

std::string to_text(const Findings& findings, const Network& a, const Network& b) {
  using enum Table::Align;
  Table table({{"layer"}, {"kind"}, {"type in A"}, {"type in B"}, {"cosine", right}, {"rmse", right}});
  for (const Row& row : findings.rows) {
    table.add({row.name, row.layer_a == row.layer_b ? row.layer_a : fmt::format("{} / {}", row.layer_a, row.layer_b),
               row.type_a, row.type_b, fmt::format("{:.6f}", row.cosine),
               row.rmse ? fmt::format("{:.3g}", *row.rmse) : "–"});
  }
  std::string text = fmt::format("{} {:.6f}\n\n{}", bold("Overall"), findings.comparison.overall, table.text());
  if (findings.only_a != 0) text += fmt::format("\n{} layers of A have no counterpart in B\n", findings.only_a);
  if (findings.only_b != 0) text += fmt::format("\n{} layers of B have no counterpart in A\n", findings.only_b);
  if (!findings.comparison.logic_shifts.empty()) text += fmt::format("\n{}\n", bold("Found elsewhere"));
  for (const LogicShift& shift : findings.comparison.logic_shifts) {
    text += fmt::format("{} of A is most like {} of B: {:.6f}\n", path_of(a, shift.source), path_of(b, shift.target),
                        shift.overlap);
  }
  return text;
}

Network load(const std::string& path, const Options& options) {
  const FileForm form = detect_form(path);
  const bool network = form == FileForm::checkpoint || form == FileForm::entity || form == FileForm::architecture;
  if (!network) {
    throw UnsupportedError(fmt::format(
        "{}: this build compares networks of layers (checkpoint, .entity), not {} models yet", path, name(form)));
  }
  return load_runnable(path, {.fp4 = options.fp4_legacy ? Fp4Table::legacy : Fp4Table::ocp});
}

void compare(const Options& options) {
  set_thread_count(options.threads);
  const Network a = load(options.a, options), b = load(options.b, options);
  const Findings findings = find(a, b, options.strict);
  options.json ? print_json(to_json(findings, a, b)) : print(to_text(findings, a, b));
}

}  // namespace

Command add_compare(CLI::App& program) {
  CLI::App* command = program.add_subcommand("compare", "Compare two networks layer by layer");
  const auto options = std::make_shared<Options>();
  command->add_option("A", options->a, "A checkpoint or .entity file")->required();
  command->add_option("B", options->b, "Another one")->required();
  command->add_flag("--strict", options->strict,
                    "Layers of different types have nothing in common (default: they may)");
  add_fp4_legacy(*command, options->fp4_legacy);
  add_threads(*command, options->threads);
  add_json(*command, options->json);
  command->footer("Examples:\n  imago compare float32.json int8.json\n  imago compare a.entity b.json --json");
  return {command, [options] { compare(*options); }};
}

}  // namespace imago::cli
