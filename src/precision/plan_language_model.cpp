// Chooses a type for each matrix of a language model, and checks the choice on other windows of the text.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "guided/calibration.h"
#include "guided/sketch.h"
#include "imago/error.h"
#include "imago/precision.h"
#include "lm/scored_windows.h"
#include "precision/allocation.h"
#include "precision/collect.h"
#include "precision/decoder_matrices.h"
#include "precision/matrix_trials.h"
#include "precision/output_probe.h"
#include "precision/plan_parts.h"
#include "precision/sensitivity.h"

namespace imago {

namespace {

using namespace precision;

/// Windows to calibrate on if no file is given: thirty thousand tokens are enough for the mean squares of some hundred
/// columns.
constexpr std::size_t kCalibrationWindows = 64;
/// The first positions of a window have too little context to say much. All others are measured: twice as many
/// positions mean a third less noise.
constexpr std::size_t kUnscored = 8;
/// Rounds of measuring each choice again together with the others.
constexpr int kRounds = 2;
/// How much worse than the best a single type may seem and still be measured.
constexpr double kNearlyAsGood = 1.2;

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// The index of the choice among the costs of each matrix.
using Choices = std::vector<std::size_t>;

class Planner {
 public:
  Planner(const std::string& path, std::string_view text, const PlanOptions& options)
      : options_(options),
        matrices_(path),
        budget_(plan_budget(matrices_, options)),
        model_(LanguageModel::load(path, {.fast = false})),
        windows_(split_windows(lm::window_tokens(text, model_.require_tokenizer(), options.context), options.context,
                               options.windows, kCalibrationWindows)) {}

  PlanReport plan() {
    const Stopwatch watch;
    PlanReport report;
    report.budget_bytes = budget_.bytes;
    const OutputProbe& probe = make_probe();
    report.memory_bytes = estimate().memory_bytes;
    calibrate();
    const MatrixTrials trials(matrices_, calibration_, rounding_);
    costs_ = measure_costs(model_, matrices_, trials, probe, budget_.types, budget_.measured, step("measuring types"));
    Choices choices = solve();
    refine(trials, choices);
    judge(trials, choices, report);
    describe(report, choices);
    report.seconds = watch.seconds();
    return report;
  }

 private:
  std::function<void(std::size_t, std::size_t)> step(std::string_view name) const {
    return [this, name](std::size_t done, std::size_t total) {
      if (options_.progress) options_.progress(name, done, total);
    };
  }

  const OutputProbe& make_probe() {
    const Stopwatch watch;
    probe_.emplace(model_, windows_.measure,
                   ProbeOptions{.context = options_.context, .first_position = options_.context / kUnscored});
    window_seconds_ = watch.seconds() / static_cast<double>(probe_->windows());
    return *probe_;
  }

  /// Extrapolates from the time of the first windows and of packing the smallest matrix in all types.
  PlanEstimate estimate() const {
    PlanEstimate estimate;
    const std::vector<DecoderMatrix>& all = matrices_.all();
    const auto smallest = std::ranges::min_element(all, {}, &DecoderMatrix::weights);
    const Stopwatch watch;
    const MatrixTrials plain(matrices_, calibration_, Rounding::nearest);
    for (const Format type : budget_.types) {
      if (fits(*smallest, type)) plain.encode(*smallest, type);
    }
    double weights = 0, passes = 0;
    const auto blocks = static_cast<double>(matrices_.traits().blocks);
    std::uint64_t largest = 0;
    for (const DecoderMatrix& matrix : all) {
      weights += static_cast<double>(matrix.weights);
      largest = std::max(largest, matrix.weights);
      passes += std::max(1.0, blocks - static_cast<double>(matrix.first_block)) / blocks;
    }
    estimate.measurements = all.size() * (budget_.measured.size() + kRounds);
    const auto windows = static_cast<double>(probe_->windows());
    const double runs = passes * static_cast<double>(budget_.measured.size() + kRounds) * windows +
                        4 * static_cast<double>(windows_.judge.size() / options_.context) +
                        (calibrates() ? static_cast<double>(windows_.calibrate.size() / options_.context) : 0);
    const double packing = watch.seconds() / static_cast<double>(smallest->weights) * weights;
    estimate.seconds = runs * window_seconds_ + 2 * packing;
    estimate.memory_bytes = model_.bytes() + probe_->bytes() + 2 * budget_.bytes + 3 * sizeof(float) * largest;
    // The products and their factors.
    if (!options_.plain && options_.rounding.value_or(Rounding::compensated) == Rounding::compensated) {
      const std::uint64_t products = matrices_.product_bytes();
      if (options_.rounding || products <= 2 * model_.bytes()) estimate.memory_bytes += 2 * products;
    }
    if (options_.on_estimate) options_.on_estimate(estimate);
    return estimate;
  }

  bool calibrates() const { return options_.calibration.empty() && !options_.plain; }

  void calibrate() {
    if (options_.plain) return;
    if (!options_.calibration.empty()) {
      calibration_ = guided::Calibration::read(options_.calibration);
      guided::check_same_model(calibration_, guided::sketch_model(matrices_.file()), matrices_.file().path());
      const auto has_products = [](const auto& known) { return !known.second->products.empty(); };
      const bool compensates = std::ranges::all_of(calibration_.matrices, has_products);
      rounding_ = options_.rounding.value_or(compensates ? Rounding::compensated : Rounding::nearest);
      return;
    }
    const bool compensates = matrices_.product_bytes() <= 2 * model_.bytes();
    rounding_ = options_.rounding.value_or(compensates ? Rounding::compensated : Rounding::nearest);
    collect(
        model_, windows_.calibrate,
        {.context = options_.context, .products = rounding_ == Rounding::compensated, .progress = step("calibrating")},
        calibration_);
  }

  Choices solve() const {
    std::vector<std::vector<StoredOption>> tensors;
    for (const std::vector<TypeCost>& costs : costs_) {
      std::vector<StoredOption>& options = tensors.emplace_back();
      for (const TypeCost& cost : costs) options.push_back({cost.bytes, cost.divergence});
    }
    return allocate(tensors, budget_.bytes).value();  // plan_budget checked that it can be met
  }

  void put_all(lm::MatrixSwap& swap, const MatrixTrials& trials, const Choices& choices) {
    packed_.resize(choices.size());
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const Format type = costs_[i][choices[i]].type;
      if (!packed_[i] || packed_[i]->first != type) {
        packed_[i].reset();  // keeps one in memory at a time
        packed_[i].emplace(type, trials.encode(matrices_.all()[i], type));
      }
      put(swap, copy_of(packed_[i]->second));
    }
  }

  /// The errors of matrices interact. Measures the cost of each choice again together with the others and allocates
  /// anew, as long as the whole gets better.
  void refine(const MatrixTrials& trials, Choices& choices) {
    double best = 0;
    for (int round = 0; round <= kRounds; ++round) {
      const Choices wanted = round == 0 ? choices : solve();
      if (round != 0 && wanted == choices) return;
      lm::MatrixSwap swap(model_);
      put_all(swap, trials, wanted);
      if (round == kRounds) {
        if (probe_->measure(0).divergence < best) choices = wanted;
        return;
      }
      probe_->rebase();
      const double whole = probe_->measure(0).divergence;
      if (round != 0 && whole >= best) return;
      best = whole;
      choices = wanted;
      for (std::size_t i = 0; i < choices.size(); ++i) {
        lm::MatrixSwap back(model_);
        put(back, trials.original(matrices_.all()[i]));
        const double part = whole - probe_->measure(matrices_.all()[i].first_block).divergence;
        rescale(costs_[i], costs_[i][choices[i]].divergence, part);
        step("measuring the plan")(static_cast<std::size_t>(round) * choices.size() + i + 1, kRounds * choices.size());
      }
    }
  }

  /// Scales the costs of all types of a matrix by the factor that one of them was off, within bounds: the difference of
  /// two measurements may be noise.
  static void rescale(std::vector<TypeCost>& costs, double expected, double got) {
    constexpr double kMostOff = 3;
    if (expected <= 0) return;
    const double factor = std::clamp(got / expected, 1 / kMostOff, kMostOff);
    for (TypeCost& cost : costs) cost.divergence *= factor;
  }

  /// Single types for all matrices that fit the budget, the most promising first.
  std::vector<std::pair<Format, Choices>> uniform_candidates() const {
    struct Candidate {
      Format type;
      Choices choices;
      double predicted = 0;
    };
    std::vector<Candidate> found;
    for (const Format type : budget_.types) {
      Candidate candidate{type, {}, 0};
      std::uint64_t bytes = 0;
      for (const std::vector<TypeCost>& costs : costs_) {
        const auto cost = std::ranges::find(costs, type, &TypeCost::type);
        if (cost == costs.end()) break;
        candidate.choices.push_back(static_cast<std::size_t>(cost - costs.begin()));
        candidate.predicted += cost->divergence;
        bytes += cost->bytes;
      }
      if (candidate.choices.size() == costs_.size() && bytes <= budget_.bytes) found.push_back(std::move(candidate));
    }
    std::ranges::sort(found, {}, &Candidate::predicted);
    std::vector<std::pair<Format, Choices>> best;
    for (const Candidate& one : found) {
      if (one.predicted <= kNearlyAsGood * found.front().predicted) best.emplace_back(one.type, one.choices);
    }
    return best;
  }

  void judge(const MatrixTrials& trials, Choices& choices, PlanReport& report) {
    probe_.reset();
    const OutputProbe probe(model_, windows_.judge, {.context = options_.context, .keep_inputs = false});
    report.judged_windows = probe.windows();
    report.original.level = std::exp(probe.surprise_before());
    const auto measure = [&](const Choices& some) {
      lm::MatrixSwap swap(model_);
      put_all(swap, trials, some);
      const OutputProbe::Outcome outcome = probe.measure(0);
      return PlanQuality{.added = outcome.divergence, .level = std::exp(outcome.surprise)};
    };
    const auto uniforms = uniform_candidates();
    const auto progress = step("judging");
    progress(0, uniforms.size() + 1);
    report.measured = measure(choices);
    std::optional<Choices> best;
    for (std::size_t i = 0; i < uniforms.size(); ++i) {
      progress(i + 1, uniforms.size() + 1);
      const auto& [type, single] = uniforms[i];
      const PlanQuality quality = measure(single);
      if (best && quality.added >= report.uniform.added) continue;
      best = single;
      report.uniform = quality;
      report.uniform_type = type;
      report.uniform_bytes = bytes_of(single);
    }
    progress(uniforms.size() + 1, uniforms.size() + 1);
    if (best && report.uniform.added <= report.measured.added) {
      choices = *best;
      report.measured = report.uniform;
      report.kept_uniform = true;
    }
  }

  std::uint64_t bytes_of(const Choices& choices) const {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < choices.size(); ++i) bytes += costs_[i][choices[i]].bytes;
    return bytes;
  }

  void describe(PlanReport& report, const Choices& choices) const {
    report.plan.rounding = rounding_;
    report.windows = windows_.measure.size() / options_.context;
    report.bytes = bytes_of(choices);
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const DecoderMatrix& matrix = matrices_.all()[i];
      const TypeCost& cost = costs_[i][choices[i]];
      report.weights += matrix.weights;
      report.predicted += cost.divergence;
      report.tensors.push_back({matrix.name, cost.type, matrix.weights, cost.bytes, cost.divergence});
      report.plan.tensors.emplace_back(matrix.name, cost.type);
    }
  }

  const PlanOptions& options_;
  DecoderMatrices matrices_;
  PlanBudget budget_;
  LanguageModel model_;
  PlanWindows windows_;
  guided::Calibration calibration_;
  Rounding rounding_ = Rounding::nearest;
  std::optional<OutputProbe> probe_;
  double window_seconds_ = 0;
  std::vector<std::vector<TypeCost>> costs_;
  /// Each matrix as last installed: most choices stay from one round to the next, and packing is slow.
  std::vector<std::optional<std::pair<Format, MatrixTrial>>> packed_;
};

}  // namespace

PlanReport plan_model(const std::string& model, std::string_view text, const std::string& text_name,
                      const PlanOptions& options) {
  PlanReport report = Planner(model, text, options).plan();
  report.plan.facts = plan_facts(report, model, text_name, options);
  return report;
}

}  // namespace imago
