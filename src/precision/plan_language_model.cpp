// Chooses a type for each matrix of a language model, and checks the choice on other windows of the text.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include "guided/calibration.h"
#include "guided/sketch.h"
#include "imago/error.h"
#include "imago/precision.h"
#include "lm/scored_windows.h"
#include "precision/collect.h"
#include "precision/decoder_matrices.h"
#include "precision/output_probe.h"
#include "precision/planner.h"
#include "precision/sensitivity.h"

namespace imago {

namespace {

using namespace precision;

using enum BlockFormat;

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

/// The best type of each size.
constexpr std::array kUsualBlocks = {q2_k, q3_k, iq4_xs, q4_k, iq4_nl, q5_k, q6_k, q8_0};

/// A type that exceeds the budgeted bits by more than this is never worth its bytes.
constexpr double kBitsAbove = 3;

std::vector<Format> usual_types(const DecoderMatrices& matrices, double bits) {
  std::vector<Format> all(kUsualBlocks.begin(), kUsualBlocks.end()), near;
  all.emplace_back(DType::float16);
  std::ranges::copy_if(all, std::back_inserter(near), [&](Format type) { return type.bits() <= bits + kBitsAbove; });
  const bool enough = std::ranges::none_of(
      matrices.all(), [&](const DecoderMatrix& matrix) { return type_options(matrix, near).empty(); });
  return enough ? near : all;
}

/// Throws UsageError for types that a language model cannot have or that fit none of its matrices.
void check_types(const DecoderMatrices& matrices, std::span<const Format> types) {
  for (const Format type : types) {
    if (type.has_scales()) {
      throw UsageError(fmt::format(
          "{} cannot be planned for a language model: its scales have no place in a GGUF file; choose block "
          "formats, float16, bfloat16 or float32",
          type.name()));
    }
  }
  for (const DecoderMatrix& matrix : matrices.all()) {
    if (!type_options(matrix, types).empty()) continue;
    throw UsageError(
        fmt::format("none of these types fits '{}', whose rows have {} weights; add q8_0 or float16 to them",
                    matrix.name, matrix.cols));
  }
}

class LanguageModelPlanner final : public Planner {
 public:
  LanguageModelPlanner(const std::string& path, std::string_view text, const PlanOptions& options)
      : Planner(options, &PlanQuality::added),
        matrices_(path),
        measured_(choose_types()),
        model_(LanguageModel::load(path, {.fast = false})),
        windows_(split_windows(lm::window_tokens(text, model_.require_tokenizer(), options.context), options.context,
                               options.windows, kCalibrationWindows)) {}

 private:
  /// Returns those to measure. Runs before the model is loaded: a budget that cannot be met is told at once.
  std::vector<Format> choose_types() {
    for (const DecoderMatrix& matrix : matrices_.all()) tensors_.push_back({matrix.name, matrix.weights});
    set_budget(matrices_.other_weights() * sizeof(float));
    types_ = options_.types.empty() ? usual_types(matrices_, budget_bits()) : options_.types;
    check_types(matrices_, types_);
    for (const DecoderMatrix& matrix : matrices_.all()) type_options_.push_back(type_options(matrix, types_));
    require_budget();
    return types_to_measure(types_, budget_bits());
  }

  /// Extrapolates from the time of the first windows and of packing the smallest matrix in all types.
  PlanEstimate estimate() override {
    const Stopwatch probing;
    probe_.emplace(model_, windows_.measure,
                   ProbeOptions{.context = options_.context, .first_position = options_.context / kUnscored});
    const auto windows = static_cast<double>(probe_->windows());
    const double window_seconds = probing.seconds() / windows;
    PlanEstimate estimate;
    const std::vector<DecoderMatrix>& all = matrices_.all();
    const auto smallest = std::ranges::min_element(all, {}, &DecoderMatrix::weights);
    const Stopwatch watch;
    const MatrixTrials plain(matrices_, calibration_, Rounding::nearest);
    for (const TypeOption& option : type_options(*smallest, types_)) plain.encode(*smallest, option.type);
    double weights = 0, passes = 0;
    const auto blocks = static_cast<double>(matrices_.traits().blocks);
    std::uint64_t largest = 0;
    for (const DecoderMatrix& matrix : all) {
      weights += static_cast<double>(matrix.weights);
      largest = std::max(largest, matrix.weights);
      passes += std::max(1.0, blocks - static_cast<double>(matrix.first_block)) / blocks;
    }
    estimate.measurements = all.size() * (measured_.size() + kRounds);
    const std::size_t judged = windows_.judge.size() / options_.context;
    const std::size_t calibrated = calibrates() ? windows_.calibrate.size() / options_.context : 0;
    const double runs = passes * static_cast<double>(measured_.size() + kRounds) * windows +
                        static_cast<double>(4 * judged + calibrated);
    const double packing = watch.seconds() / static_cast<double>(smallest->weights) * weights;
    estimate.seconds = runs * window_seconds + 2 * packing;
    estimate.memory_bytes = model_.bytes() + probe_->bytes() + 2 * budget_ + 3 * sizeof(float) * largest;
    // The products and their factors.
    if (!options_.plain && rounding_with(can_collect_products()) == Rounding::compensated) {
      estimate.memory_bytes += 2 * matrices_.product_bytes();
    }
    return estimate;
  }

  bool calibrates() const { return options_.calibration.empty() && !options_.plain; }

  bool can_collect_products() const { return matrices_.product_bytes() <= 2 * model_.bytes(); }

  Rounding rounding_with(bool products) const {
    return options_.rounding.value_or(products ? Rounding::compensated : Rounding::nearest);
  }

  void calibrate() {
    if (!options_.calibration.empty()) {
      calibration_ = guided::Calibration::read(options_.calibration);
      guided::check_same_model(calibration_, guided::sketch_model(matrices_.file()), matrices_.file().path());
      const auto has_products = [](const auto& known) { return !known.second->products.empty(); };
      rounding_ = rounding_with(std::ranges::all_of(calibration_.matrices, has_products));
      return;
    }
    rounding_ = rounding_with(can_collect_products());
    collect(model_, windows_.calibrate,
            {.context = options_.context,
             .products = rounding_ == Rounding::compensated,
             .progress = [this](std::size_t done, std::size_t total) { progress("calibrating", done, total); }},
            calibration_);
  }

  void measure_types() override {
    if (!options_.plain) calibrate();
    trials_.emplace(matrices_, calibration_, rounding_);
    type_options_ =
        measure_costs(model_, matrices_, *trials_, *probe_, types_, measured_,
                      [this](std::size_t done, std::size_t total) { progress("measuring types", done, total); });
  }

  void put_all(lm::MatrixSwap& swap, const Choices& choices) {
    packed_.resize(choices.size());
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const Format type = type_options_[i][choices[i]].type;
      if (!packed_[i] || packed_[i]->first != type) {
        packed_[i].reset();  // keeps one in memory at a time
        packed_[i].emplace(type, trials_->encode(matrices_.all()[i], type));
      }
      for (const auto& [key, weights] : packed_[i]->second.parts) {
        swap.put(key, packed(weights.format, weights.packed.host()));
      }
    }
  }

  /// The errors of matrices interact. Measures the cost of each choice again together with the others and allocates
  /// anew, as long as the whole gets better.
  void refine(Choices& choices) override {
    double best = 0;
    for (int round = 0; round <= kRounds; ++round) {
      const Choices wanted = round == 0 ? choices : solve();
      if (round != 0 && wanted == choices) return;
      lm::MatrixSwap swap(model_);
      put_all(swap, wanted);
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
        put(back, trials_->original(matrices_.all()[i]));
        const double part = whole - probe_->measure(matrices_.all()[i].first_block).divergence;
        rescale(type_options_[i], type_options_[i][choices[i]].cost, part);
        progress("measuring the plan", static_cast<std::size_t>(round) * choices.size() + i + 1,
                 kRounds * choices.size());
      }
    }
  }

  /// Scales the costs of all types of a matrix by the factor that one of them was off, within bounds: the difference of
  /// two measurements may be noise.
  static void rescale(std::vector<TypeOption>& options, double expected, double got) {
    constexpr double kMostOff = 3;
    if (expected <= 0) return;
    const double factor = std::clamp(got / expected, 1 / kMostOff, kMostOff);
    for (TypeOption& option : options) option.cost *= factor;
  }

  void begin_judging(PlanReport& report) override {
    report.plan.rounding = rounding_;
    report.windows = probe_->windows();
    probe_.reset();
    probe_.emplace(model_, windows_.judge, ProbeOptions{.context = options_.context, .keep_inputs = false});
    report.judged_windows = probe_->windows();
    report.original.level = std::exp(probe_->surprise_before());
  }

  PlanQuality judge(const Choices& choices) override {
    lm::MatrixSwap swap(model_);
    put_all(swap, choices);
    const OutputProbe::Outcome outcome = probe_->measure(0);
    return {.added = outcome.divergence, .level = std::exp(outcome.surprise)};
  }

  /// The most promising ones.
  std::vector<Choices> rivals(std::vector<Choices> uniform) const override {
    const auto predicted = [&](const Choices& choices) {
      double sum = 0;
      for (std::size_t i = 0; i < choices.size(); ++i) sum += type_options_[i][choices[i]].cost;
      return sum;
    };
    std::ranges::sort(uniform, {}, predicted);
    if (uniform.empty()) return uniform;
    const double most = kNearlyAsGood * predicted(uniform.front());
    std::erase_if(uniform, [&](const Choices& choices) { return predicted(choices) > most; });
    return uniform;
  }

  DecoderMatrices matrices_;
  std::vector<Format> measured_;
  LanguageModel model_;
  PlanWindows windows_;
  guided::Calibration calibration_;
  Rounding rounding_ = Rounding::nearest;
  std::optional<OutputProbe> probe_;
  std::optional<MatrixTrials> trials_;
  /// Each matrix as last installed: most choices stay from one round to the next, and packing is slow.
  std::vector<std::optional<std::pair<Format, MatrixTrial>>> packed_;
};

}  // namespace

PlanReport plan_model(const std::string& model, std::string_view text, const std::string& text_name,
                      const PlanOptions& options) {
  return LanguageModelPlanner(model, text, options).plan(model, text_name);
}

}  // namespace imago
