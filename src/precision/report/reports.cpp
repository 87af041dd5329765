// Reports of comparisons and of sweeps: figures and a summary in words.

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

/// The types of B if its tensors have different ones.
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
  report.title = fmt::format("{} compared with {}", file_name(b.path), file_name(a.path));
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

namespace {

/// The smallest point that satisfies `good`; null if there is none.
template <class Good>
const SweepPoint* smallest(const SweepReport& sweep, Good&& good) {
  const SweepPoint* best = nullptr;
  for (const SweepPoint& point : sweep.points) {
    if (good(point) && (best == nullptr || point.bytes < best->bytes)) best = &point;
  }
  return best;
}

const SweepPoint* smallest_within(const SweepReport& sweep, double divergence) {
  return smallest(sweep,
                  [&](const SweepPoint& point) { return point.divergence && point.divergence->mean <= divergence; });
}

/// The smallest dtype that is about as accurate as the original network, or whose loss is at most 5 % higher.
const SweepPoint* smallest_as_good(const SweepReport& sweep) {
  return smallest(sweep, [&](const SweepPoint& point) {
    if (!point.score || !sweep.score) return false;
    if (point.score->accuracy && sweep.score->accuracy) return *point.score->accuracy >= *sweep.score->accuracy - 0.01;
    return point.score->loss <= 1.05 * sweep.score->loss;
  });
}

ReportFact fact_of(std::string label, const SweepPoint* point, const SweepReport& sweep) {
  if (point == nullptr) return {std::move(label), "none", "of the types tried"};
  return {
      std::move(label), file_name(point->name),
      fmt::format("{:.2f} bits per weight, {}", point->bits_per_weight, size_change_text(sweep.bytes, point->bytes))};
}

struct SweepKind {
  std::string cost_name;
  std::vector<std::string> columns;
  std::string explanation;
};

SweepKind sweep_kind(const SweepReport& sweep) {
  const auto any = [&](auto has) { return std::ranges::any_of(sweep.points, has); };
  if (any([](const SweepPoint& point) { return point.divergence.has_value(); })) {
    return {
        "mean KL divergence (nats)",
        {"99 %", "perplexity", "same top token", "weight error"},
        "Further left is smaller, further down is closer to the original. Filled points are the front: nothing that "
        "was tried is both smaller and closer."};
  }
  if (any([](const SweepPoint& point) { return point.score.has_value(); })) {
    return {"loss",
            {"accuracy", "weight error"},
            "Further left is smaller, further down is better. Filled points are the front: nothing that was tried is "
            "both smaller and better."};
  }
  return {"relative error of the weights",
          {},
          "Further left is smaller, further down is closer to the original. Filled points are the front: nothing that "
          "was tried is both smaller and closer."};
}

std::vector<std::string> cells_of(const SweepPoint& point, const SweepKind& kind) {
  const std::string error = point.relative_rmse ? fmt::format("{} %", figure_text(100 * *point.relative_rmse)) : "–";
  if (point.divergence) {
    return {figure_text(point.divergence->percentile_99), figure_text(point.divergence->perplexity),
            share_text(point.divergence->same_top), error};
  }
  if (point.score) return {point.score->accuracy ? share_text(*point.score->accuracy) : "–", error};
  return std::vector<std::string>(kind.columns.size(), "–");
}

std::string swept_in_words(const SweepReport& sweep) {
  const SweepPoint* near = smallest_within(sweep, 0.01);
  const SweepPoint* fair = smallest_within(sweep, 0.1);
  if (near != nullptr && fair != nullptr && near != fair) {
    return fmt::format(
        "With {} the model is {} and {}; with {} it is {}, and picks the same next token in {} of all cases.",
        file_name(near->name), size_change_text(sweep.bytes, near->bytes), divergence_in_words(near->divergence->mean),
        file_name(fair->name), size_change_text(sweep.bytes, fair->bytes), share_text(fair->divergence->same_top));
  }
  if (const SweepPoint* good = smallest_as_good(sweep)) {
    return fmt::format("{} is the smallest type that does as well as the original: {}.", file_name(good->name),
                       size_change_text(sweep.bytes, good->bytes));
  }
  return "";
}

}  // namespace

PrecisionReport report_of(const SweepReport& sweep) {
  PrecisionReport report;
  report.title = fmt::format("{} at {} precisions", file_name(sweep.model), sweep.points.size());
  report.subtitle =
      fmt::format("{}: {} weights in {}, {}{}.", sweep.model, count_text(sweep.parameters), bytes_text(sweep.bytes),
                  sweep.type, sweep.architecture.empty() ? "" : fmt::format(", architecture {}", sweep.architecture));
  report.summary = swept_in_words(sweep);
  const auto front = std::ranges::count_if(sweep.points, &SweepPoint::on_front);
  report.facts.push_back({"Types tried", std::to_string(sweep.points.size()), fmt::format("{} on the front", front)});
  if (sweep.perplexity) {
    report.facts.push_back(
        {"Perplexity of the original", figure_text(*sweep.perplexity),
         fmt::format("{} bits per weight", figure_text(bits_per_weight(sweep.bytes, sweep.parameters)))});
    report.facts.push_back(fact_of("Smallest within 0.01 nats", smallest_within(sweep, 0.01), sweep));
    report.facts.push_back(fact_of("Smallest within 0.1 nats", smallest_within(sweep, 0.1), sweep));
  }
  if (sweep.score) {
    if (sweep.score->accuracy) {
      report.facts.push_back({"Accuracy of the original", share_text(*sweep.score->accuracy), ""});
    }
    report.facts.push_back({"Loss of the original", figure_text(sweep.score->loss), ""});
    report.facts.push_back(fact_of("Smallest that is as good", smallest_as_good(sweep), sweep));
  }
  const SweepKind kind = sweep_kind(sweep);
  QualityCurve curve{.heading = "Size and quality",
                     .explanation = kind.explanation,
                     .cost_name = kind.cost_name,
                     .columns = kind.columns,
                     .points = {}};
  for (const SweepPoint& point : sweep.points) {
    curve.points.push_back({.name = point.name,
                            .bytes = point.bytes,
                            .bits_per_weight = point.bits_per_weight,
                            .cost = point.cost(),
                            .on_front = point.on_front,
                            .cells = cells_of(point, kind)});
    if (point.divergence) report.spreads.push_back({point.name, *point.divergence});
  }
  report.curves.push_back(std::move(curve));
  // The plan of least cost.
  const SweepPoint* plan = nullptr;
  for (const SweepPoint& point : sweep.points) {
    if (point.is_plan && (plan == nullptr || point.cost() < plan->cost())) plan = &point;
  }
  if (plan != nullptr) {
    report.plan = plan->types;
    report.plan_heading = fmt::format("The plan {}", file_name(plan->name));
  }
  std::ranges::stable_sort(report.spreads, {}, [](const DivergenceSpread& spread) { return spread.report.mean; });
  return report;
}

}  // namespace imago
