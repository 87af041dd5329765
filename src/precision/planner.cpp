#include "precision/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "files/json_writer.h"
#include "imago/error.h"

namespace imago::precision {

namespace {

/// The "facts" of a plan file, as a JSON object.
std::string plan_facts(const PlanReport& report, const std::string& model, const std::string& measured_on,
                       const PlanOptions& options) {
  const bool network = report.windows == 0;
  files::StringSink sink;
  files::JsonWriter writer(sink, files::JsonStyle::compact);
  const auto fact = [&](std::string_view name, const auto& value) {
    writer.key(name);
    writer.value(value);
  };
  const auto number = [&](std::string_view name, double value) {
    writer.key(name);
    std::isfinite(value) ? writer.value(value) : writer.raw("null");
  };
  const auto quality = [&](std::string_view name, const PlanQuality& found) {
    writer.key(name);
    writer.begin_object();
    number(network ? "loss_added" : "kl", found.added);
    number(network ? "loss" : "perplexity", found.level);
    if (found.accuracy) number("accuracy", *found.accuracy);
    writer.end_object();
  };
  writer.begin_object();
  fact("model", std::string_view(model));
  fact(network ? "data" : "text", std::string_view(measured_on));
  if (!network) {
    fact("calibration", std::string_view(options.plain                 ? "none"
                                         : options.calibration.empty() ? "the text"
                                                                       : options.calibration));
    fact("context", std::uint64_t{options.context});
    fact("windows_measured", std::uint64_t{report.windows});
    fact("windows_judged", std::uint64_t{report.judged_windows});
  }
  fact("weights", report.weights);
  fact("budget_bytes", report.budget_bytes);
  fact("bytes", report.bytes);
  number("bits_per_weight", report.bits_per_weight());
  number("predicted", report.predicted);
  quality("original", report.original);
  quality("measured", report.measured);
  if (report.uniform_type) {
    fact("uniform_type", report.uniform_type->name());
    fact("uniform_bytes", report.uniform_bytes);
    quality("uniform", report.uniform);
    fact("kept_uniform", report.kept_uniform);
  }
  writer.key("added_by_tensor");
  writer.begin_object();
  for (const TensorChoice& tensor : report.tensors) number(tensor.name, tensor.added);
  writer.end_object();
  writer.end_object();
  return std::move(sink.text());
}

}  // namespace

PlanReport Planner::plan(const std::string& model, const std::string& measured_on) {
  const Stopwatch watch;
  PlanReport report;
  report.budget_bytes = budget_;
  const PlanEstimate estimated = estimate();
  report.memory_bytes = estimated.memory_bytes;
  if (options_.on_estimate) options_.on_estimate(estimated);
  measure_types();
  Choices choices = solve();
  refine(choices);
  begin_judging(report);
  compare_with_uniform(choices, report);
  describe(choices, report);
  report.plan.facts = plan_facts(report, model, measured_on, options_);
  report.seconds = watch.seconds();
  return report;
}

void Planner::refine(Choices&) {}
std::vector<Choices> Planner::rivals(std::vector<Choices> uniform) const { return uniform; }

void Planner::set_budget(std::uint64_t other_bytes) {
  other_bytes_ = other_bytes;
  if (options_.bits.has_value() == options_.size.has_value()) {
    throw UsageError("a plan needs a budget: either bits per weight or bytes");
  }
  if (options_.bits) {
    if (!std::isfinite(*options_.bits) || *options_.bits <= 0 || *options_.bits > 64) {
      throw UsageError(fmt::format("{} bits per weight; give more than 0 and at most 64", *options_.bits));
    }
    budget_ = static_cast<std::uint64_t>(*options_.bits * static_cast<double>(weights()) / 8);
  } else if (*options_.size < other_bytes) {
    throw UsageError(fmt::format("{} bytes do not even hold the tensors that keep their type, which are {}",
                                 *options_.size, other_bytes));
  } else {
    budget_ = *options_.size - other_bytes;
  }
}

double Planner::budget_bits() const { return bits_per_weight(budget_, weights()); }

void Planner::require_budget() const {
  const std::uint64_t smallest = smallest_size(type_options_);
  if (budget_ >= smallest) return;
  const double bits = bits_per_weight(smallest, weights());
  throw UsageError(
      fmt::format("{:.4g} bits per weight ({} bytes) cannot be met with these types: the smallest possible is {:.4g} "
                  "bits per weight (--bits {}), {} bytes in all",
                  budget_bits(), budget_ + other_bytes_, bits, std::ceil(bits * 1000) / 1000, smallest + other_bytes_));
}

Choices Planner::solve() const {
  return allocate(type_options_, budget_).value();  // require_budget checked that it can be met
}

void Planner::progress(std::string_view step, std::size_t done, std::size_t total) const {
  if (options_.progress) options_.progress(step, done, total);
}

/// All tensors in one type, for each type that fits them and the budget.
std::vector<Choices> Planner::uniform_choices() const {
  std::vector<Choices> found;
  for (const Format type : types_) {
    Choices choices;
    for (const std::vector<TypeOption>& options : type_options_) {
      const auto option = std::ranges::find(options, type, &TypeOption::type);
      if (option != options.end()) choices.push_back(static_cast<std::size_t>(option - options.begin()));
    }
    if (choices.size() == tensors_.size() && bytes_of(choices) <= budget_) found.push_back(std::move(choices));
  }
  return found;
}

/// Judges the choices and the best single types, and takes one of these unless the choices are better.
void Planner::compare_with_uniform(Choices& choices, PlanReport& report) {
  constexpr std::string_view kStep = "judging";
  const auto badness = [&](const PlanQuality& quality) {
    return std::isfinite(quality.*judged_by_) ? quality.*judged_by_ : kHopeless;
  };
  const std::vector<Choices> uniform = rivals(uniform_choices());
  progress(kStep, 0, uniform.size() + 1);
  report.measured = judge(choices);
  const Choices* best = nullptr;
  for (std::size_t i = 0; i < uniform.size(); ++i) {
    progress(kStep, i + 1, uniform.size() + 1);
    const PlanQuality quality = judge(uniform[i]);
    if (best != nullptr && badness(quality) >= badness(report.uniform)) continue;
    best = &uniform[i];
    report.uniform = quality;
    report.uniform_type = type_options_.front()[best->front()].type;
    report.uniform_bytes = bytes_of(*best);
  }
  progress(kStep, uniform.size() + 1, uniform.size() + 1);
  if (best == nullptr || badness(report.measured) < badness(report.uniform)) return;
  choices = *best;
  report.measured = report.uniform;
  report.kept_uniform = true;
}

void Planner::describe(const Choices& choices, PlanReport& report) const {
  report.weights = weights();
  report.bytes = bytes_of(choices);
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const TypeOption& option = type_options_[i][choices[i]];
    report.predicted += option.cost;
    report.tensors.push_back({tensors_[i].name, option.type, tensors_[i].weights, option.bytes, option.cost});
    report.plan.tensors.emplace_back(tensors_[i].name, option.type);
  }
}

std::uint64_t Planner::bytes_of(const Choices& choices) const {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < choices.size(); ++i) bytes += type_options_[i][choices[i]].bytes;
  return bytes;
}

std::uint64_t Planner::weights() const {
  std::uint64_t sum = 0;
  for (const SizedTensor& tensor : tensors_) sum += tensor.weights;
  return sum;
}

PlanWindows split_windows(std::span<const TokenId> ids, std::size_t context, std::size_t measured,
                          std::size_t calibrated) {
  const std::size_t windows = ids.size() / context;
  if (windows < 2) {
    throw UsageError(
        fmt::format("the text has {} tokens; a plan needs at least two windows of {}, one to measure and one to judge",
                    ids.size(), context));
  }
  const std::size_t measuring = std::clamp<std::size_t>(measured, 1, std::max<std::size_t>(1, windows / 3));
  const std::size_t judging = std::min(2 * measuring, windows - measuring);
  const std::size_t chosen = measuring + judging;
  PlanWindows split;
  std::vector<std::size_t> free;
  const auto append = [&](std::vector<TokenId>& to, std::size_t window) {
    const std::span<const TokenId> tokens = ids.subspan(window * context, context);
    to.insert(to.end(), tokens.begin(), tokens.end());
  };
  std::size_t next = 0;
  for (std::size_t window = 0; window < windows; ++window) {
    // Chosen windows are at next · windows / chosen; the middle one of three measures.
    const bool is_chosen = next < chosen && window == next * windows / chosen;
    const bool judges = is_chosen && (chosen < 3 ? next == 1 : next % 3 != 1);
    if (is_chosen) append(judges ? split.judge : split.measure, window);
    if (is_chosen) ++next;
    if (!judges) free.push_back(window);
  }
  const std::size_t count = std::min(calibrated, free.size());
  for (std::size_t i = 0; i < count; ++i) append(split.calibrate, free[i * free.size() / count]);
  return split;
}

}  // namespace imago::precision
