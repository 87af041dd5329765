// What a sweep has to say, in figures and in words.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "imago/precision.h"
#include "precision/report/words.h"

namespace imago {

namespace {

using precision::bytes_text, precision::count_text, precision::divergence_in_words, precision::figure_text,
    precision::file_name, precision::share_text, precision::size_change_text;

/// The smallest point that `good` holds for; null if there is none.
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

/// The smallest dtype that is right about as often as the network as it is, or else loses no more than it by 5 %.
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
    report.facts.push_back({"Perplexity of the original", figure_text(*sweep.perplexity),
                            fmt::format("{} bits per weight", figure_text(8.0 * static_cast<double>(sweep.bytes) /
                                                                          static_cast<double>(sweep.parameters)))});
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
  std::ranges::stable_sort(report.spreads, {}, [](const DivergenceSpread& spread) { return spread.report.mean; });
  return report;
}

}  // namespace imago
