// What a comparison has to say, in figures and in words.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "imago/precision.h"
#include "precision/report/words.h"

namespace imago {

namespace {

using precision::bytes_text, precision::change_text, precision::count_text, precision::divergence_in_words,
    precision::figure_text, precision::file_name, precision::share_text, precision::size_change_text;

std::string loss_name(LossKind kind) { return kind == LossKind::mse ? "mean squared error" : "cross-entropy"; }

double relative_change(double before, double after) {
  return before == 0 ? (after == 0 ? 0 : HUGE_VAL) : after / before - 1;
}

void add_size_facts(const ModelComparison& comparison, PrecisionReport& report) {
  const ComparedModel &a = comparison.a, &b = comparison.b;
  report.facts.push_back(
      {"Size", size_change_text(a.bytes, b.bytes), fmt::format("{} → {}", bytes_text(a.bytes), bytes_text(b.bytes))});
  report.facts.push_back({"Bits per weight", fmt::format("{:.2f}", b.bits_per_weight()),
                          fmt::format("{:.2f} in the original", a.bits_per_weight())});
}

void add_divergence_facts(const DivergenceReport& divergence, PrecisionReport& report) {
  report.facts.push_back({"Mean KL divergence", figure_text(divergence.mean),
                          fmt::format("nats; median {}, 99 %: {}", figure_text(divergence.median),
                                      figure_text(divergence.percentile_99))});
  report.facts.push_back(
      {"Perplexity", figure_text(divergence.perplexity),
       fmt::format("{} from {}", change_text(relative_change(divergence.reference_perplexity, divergence.perplexity)),
                   figure_text(divergence.reference_perplexity))});
  report.facts.push_back({"Same top token", share_text(divergence.same_top),
                          fmt::format("of {} positions", count_text(divergence.tokens_scored))});
}

void add_score_facts(const NetworkScore& a, const NetworkScore& b, PrecisionReport& report) {
  if (a.accuracy && b.accuracy) {
    report.facts.push_back(
        {"Accuracy", share_text(*b.accuracy), fmt::format("{} in the original", share_text(*a.accuracy))});
  }
  report.facts.push_back({"Loss", figure_text(b.loss),
                          fmt::format("{}; {} in the original", loss_name(b.loss_kind), figure_text(a.loss))});
}

std::string compared_in_words(const ModelComparison& comparison) {
  const std::string size = size_change_text(comparison.a.bytes, comparison.b.bytes);
  const std::string start = size == "the same size" ? "B takes as much room as A" : fmt::format("B is {} than A", size);
  if (comparison.divergence) {
    const DivergenceReport& divergence = *comparison.divergence;
    return fmt::format("{} and predicts the same next token in {} of all cases. Its perplexity is {} ({}): {}.", start,
                       share_text(divergence.same_top), figure_text(divergence.perplexity),
                       change_text(relative_change(divergence.reference_perplexity, divergence.perplexity)),
                       divergence_in_words(divergence.mean));
  }
  if (comparison.a.score && comparison.b.score && comparison.b.score->accuracy) {
    return fmt::format("{} and right in {} of all examples, where A is right in {}.", start,
                       share_text(*comparison.b.score->accuracy), share_text(comparison.a.score->accuracy.value_or(0)));
  }
  return fmt::format("{}; their weights point the same way with a cosine of {:.6f}.", start, comparison.overall);
}

void add_only(const ComparedModel& model, std::string_view which, PrecisionReport& report) {
  if (model.only.empty()) return;
  constexpr std::size_t kNamed = 12;
  std::string names;
  for (std::size_t i = 0; i < std::min(kNamed, model.only.size()); ++i) {
    names += fmt::format("{}{}", i == 0 ? "" : ", ", model.only[i]);
  }
  if (model.only.size() > kNamed) names += fmt::format(" and {} more", model.only.size() - kNamed);
  report.notes.push_back(fmt::format("Only in {}: {}.", which, names));
}

/// The types of B, where they differ from tensor to tensor.
std::vector<TypedTensor> types_of(const ModelComparison& comparison) {
  std::vector<TypedTensor> plan;
  std::set<std::string> types;
  for (const ComparedTensor& tensor : comparison.tensors) {
    if (tensor.is_vector || tensor.weights == 0) continue;
    plan.push_back({tensor.name, tensor.type_b, tensor.weights, tensor.bytes_b});
    types.insert(tensor.type_b);
  }
  return types.size() > 1 ? plan : std::vector<TypedTensor>();
}

}  // namespace

PrecisionReport report_of(const ModelComparison& comparison) {
  PrecisionReport report;
  const ComparedModel &a = comparison.a, &b = comparison.b;
  report.title = fmt::format("{} beside {}", file_name(b.path), file_name(a.path));
  const std::string kind = comparison.of_networks            ? "a network of layers"
                           : comparison.architecture.empty() ? "tensors"
                                                             : fmt::format("architecture {}", comparison.architecture);
  report.subtitle = fmt::format("A, the original: {} ({}). B: {} ({}). {} weights, {}.", a.path, a.type, b.path, b.type,
                                count_text(a.parameters), kind);
  report.summary = compared_in_words(comparison);
  add_size_facts(comparison, report);
  if (comparison.divergence) add_divergence_facts(*comparison.divergence, report);
  if (a.score && b.score) add_score_facts(*a.score, *b.score, report);
  report.facts.push_back({"Cosine of the weights", fmt::format("{:.6f}", comparison.overall),
                          comparison.of_networks ? "mean over the layers" : "all compared weights together"});
  report.layers = comparison.tensors;
  if (comparison.divergence) report.spreads.push_back({file_name(b.path), *comparison.divergence});
  report.plan = types_of(comparison);
  report.plan_heading = "The types of B";
  add_only(a, "A", report);
  add_only(b, "B", report);
  for (const ShiftedLayer& shift : comparison.logic_shifts) {
    report.notes.push_back(
        fmt::format("{} of A is most like {} of B: {:.6f}.", shift.source, shift.target, shift.overlap));
  }
  return report;
}

}  // namespace imago
