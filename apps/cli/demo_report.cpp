#include "demo_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "imago/system.h"
#include "output.h"

namespace imago::cli {

namespace {

std::string percent_of(double share) { return fmt::format("{:.1f} %", 100 * share); }

/// Marks the points that no other is both smaller than and better than.
void mark_front(std::vector<CurvePoint>& points) {
  for (CurvePoint& point : points) {
    point.on_front = std::none_of(points.begin(), points.end(), [&](const CurvePoint& other) {
      return other.bytes <= point.bytes && other.cost <= point.cost &&
             (other.bytes < point.bytes || other.cost < point.cost);
    });
  }
}

QualityCurve network_curve(const std::vector<DemoRow>& rows, std::size_t weights) {
  QualityCurve curve;
  curve.heading = "A network in 21 types";
  curve.explanation =
      "Each point is the network in one type, after a little training through the rounding. The table has the share of "
      "digits that it reads rightly before and after that, and whether its file reads back byte for byte.";
  curve.cost_name = "share misread";
  curve.columns = {"cosine", "rounded", "trained on", "µs", "file"};
  for (const DemoRow& row : rows) {
    CurvePoint point;
    point.name = std::string(name(row.type));
    point.bytes = row.bytes;
    point.bits_per_weight = 8.0 * static_cast<double>(row.bytes) / static_cast<double>(weights);
    point.cost = 1 - row.trained;
    point.cells = {fmt::format("{:.5f}", row.cosine), percent_of(row.rounded), percent_of(row.trained),
                   fmt::format("{:.1f}", row.microseconds), row.same_bytes ? "same" : "DIFFERS"};
    curve.points.push_back(std::move(point));
  }
  mark_front(curve.points);
  return curve;
}

QualityCurve model_curve(const std::vector<DemoModel>& models) {
  QualityCurve curve;
  curve.heading = "A language model at several precisions";
  curve.explanation = fmt::format(
      "How far predictions move away from those of the model as it is stored, and how each goes on after \"{}\".",
      kDemoPrompt);
  curve.cost_name = "mean KL divergence (nats)";
  curve.columns = {"perplexity", "same first choice", "tokens/s", "it writes"};
  for (const DemoModel& model : models) {
    CurvePoint point;
    point.name = model.type;
    point.bytes = model.bytes;
    point.bits_per_weight =
        8.0 * static_cast<double>(model.bytes) / static_cast<double>(std::max<std::uint64_t>(1, model.parameters));
    point.cost = model.divergence.mean;
    point.cells = {fmt::format("{:.1f}", model.divergence.perplexity), percent_of(model.divergence.same_top),
                   fmt::format("{:.0f}", model.tokens_per_second), printable(shortened(model.text, 90))};
    curve.points.push_back(std::move(point));
  }
  mark_front(curve.points);
  return curve;
}

}  // namespace

PrecisionReport demo_report(const DemoNetwork& demo, const std::vector<DemoRow>& rows,
                            const std::vector<DemoModel>& models) {
  PrecisionReport report;
  report.title = "imago demo";
  report.subtitle = fmt::format("imago {}, {}, {} threads", version(), inspect_system().cpu, thread_count());
  const auto smallest =
      std::min_element(rows.begin(), rows.end(), [](const DemoRow& a, const DemoRow& b) { return a.bytes < b.bytes; });
  report.summary = fmt::format(
      "A network of {} weights learned to read digits here, and was then brought into every scalar type. Every number "
      "on "
      "this page was computed on this machine.",
      format_count(demo.network.parameters()));
  report.facts = {{"float32", percent_of(demo.accuracy),
                   fmt::format("of {} new digits read rightly", format_count(demo.unseen.size()))},
                  {"training", fmt::format("{:.1f} s", demo.seconds),
                   fmt::format("on {} drawn digits", format_count(demo.seen.size()))},
                  {std::string(name(smallest->type)), percent_of(smallest->trained),
                   fmt::format("in {}, trained through its rounding; {} before", format_bytes(smallest->bytes),
                               percent_of(smallest->rounded))}};
  report.curves.push_back(network_curve(rows, demo.network.parameters()));
  if (!models.empty()) report.curves.push_back(model_curve(models));
  for (std::size_t i = 1; i < models.size(); ++i) report.spreads.push_back({models[i].type, models[i].divergence});
  report.notes = {
      "Times are of one digit with one thread, on a network so small that calling it takes a good part of them.",
      "The language model is judged on a page that it wrote itself: enough to see a trend, not to compare "
      "types by their last digits."};
  return report;
}

}  // namespace imago::cli
