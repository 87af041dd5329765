#pragma once

// What plans of networks and of language models share: the budget, the choice among the types of each tensor, the
// single types that it has to beat, and the report.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "imago/format.h"
#include "imago/lm.h"
#include "imago/precision.h"
#include "precision/allocation.h"

namespace imago::precision {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Plans the types of a model's tensors. What each costs is measured by the planner of that kind of model.
class Planner {
 public:
  virtual ~Planner() = default;
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  /// Measures, allocates and judges. `model` and `measured_on` are what the facts of the plan call them.
  PlanReport plan(const std::string& model, const std::string& measured_on);

 protected:
  struct SizedTensor {
    std::string name;
    std::uint64_t weights = 0;
  };

  /// `judged_by`: the figure that a better plan has less of.
  Planner(const PlanOptions& options, double PlanQuality::*judged_by) : options_(options), judged_by_(judged_by) {}

  /// Prepares measuring, and tells what it will take.
  virtual PlanEstimate estimate() = 0;
  /// Sets the costs of all options.
  virtual void measure_types() = 0;
  /// May improve choices that are optimal if costs add up.
  virtual void refine(Choices& choices);
  /// Turns to the data that measuring has not seen, and reports how good the original is on it.
  virtual void begin_judging(PlanReport& report) = 0;
  /// How good the model is with these types, on that data.
  virtual PlanQuality judge(const Choices& choices) = 0;
  /// Which single types to compare the plan with, best first, of those that fit the budget.
  virtual std::vector<Choices> rivals(std::vector<Choices> uniform) const;

  /// Sets the bytes of the budget, given `other_bytes` that do not change. Throws UsageError unless exactly one of bits
  /// and size is given, and if the size is too small for the others. REQUIRES: tensors.
  void set_budget(std::uint64_t other_bytes);
  /// Bits per weight of the budget.
  double budget_bits() const;
  /// Throws UsageError, naming the smallest possible budget, if this one is too small. REQUIRES: the sizes of options.
  void require_budget() const;
  std::uint64_t weights() const;  ///< of all tensors
  /// Choices of least cost.
  Choices solve() const;
  void progress(std::string_view step, std::size_t done, std::size_t total) const;

  /// Replaces a cost that is not finite: worse than any other, but can be added.
  static constexpr double kHopeless = 1e30;

  const PlanOptions& options_;
  std::vector<SizedTensor> tensors_;
  std::vector<Format> types_;                          ///< to choose from
  std::vector<std::vector<TypeOption>> type_options_;  ///< of each tensor
  std::uint64_t budget_ = 0;                           ///< bytes of all tensors

 private:
  std::vector<Choices> uniform_choices() const;
  void compare_with_uniform(Choices& choices, PlanReport& report);
  void describe(const Choices& choices, PlanReport& report) const;
  std::uint64_t bytes_of(const Choices& choices) const;

  double PlanQuality::*judged_by_;
  std::uint64_t other_bytes_ = 0;
};

/// Windows of a text for three purposes. Those that judge are used for nothing else.
struct PlanWindows {
  std::vector<TokenId> measure, judge, calibrate;  ///< tokens of the windows, concatenated
};

/// Up to `measured` windows of `ids` measure and twice as many judge, spread evenly over the text, since texts change
/// as they go on; at most `calibrated` of those that do not judge calibrate. Throws UsageError for a text of fewer than
/// two windows.
PlanWindows split_windows(std::span<const TokenId> ids, std::size_t context, std::size_t measured,
                          std::size_t calibrated);

}  // namespace imago::precision
