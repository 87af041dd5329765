#include "precision/sensitivity.h"

#include <algorithm>
#include <cmath>

#include "lm/matrix_encoder.h"

namespace imago::precision {

namespace {

/// Bounds of the fitted power: two nearby measurements can suggest any value by chance.
constexpr double kLeastPower = 0.7, kMostPower = 2;
/// A divergence below this is rounding noise.
constexpr double kLeastDivergence = 1e-9;

/// The cost of an error, extrapolated with `power` from a known one.
double ratio_power(double error, const TypeOption& known, double power) {
  return error <= 0 ? 0 : known.cost * std::pow(error / known.output_error, power);
}

double power_between(const TypeOption& fine, const TypeOption& coarse) {
  if (coarse.output_error <= 1.1 * fine.output_error) return 1;
  return std::clamp(std::log(coarse.cost / fine.cost) / std::log(coarse.output_error / fine.output_error), kLeastPower,
                    kMostPower);
}

}  // namespace

void estimate_unmeasured(std::span<TypeOption> options) {
  std::vector<TypeOption> known;
  for (const TypeOption& option : options) {
    if (option.measured && option.output_error > 0) known.push_back(option);
  }
  if (known.empty()) return;  // all errors are 0
  std::ranges::sort(known, {}, &TypeOption::output_error);
  known.front().cost = std::max(known.front().cost, kLeastDivergence);
  for (std::size_t i = 1; i < known.size(); ++i) {  // a larger error with a lower cost is noise
    known[i].cost = std::max(known[i].cost, known[i - 1].cost);
  }
  for (TypeOption& option : options) {
    if (option.measured) continue;
    const auto above = std::ranges::upper_bound(known, option.output_error, {}, &TypeOption::output_error);
    if (above == known.begin()) {
      option.cost = ratio_power(option.output_error, *above, 1);
      continue;
    }
    // Between two measured costs, their own power; beyond the coarsest, the power of the last two.
    const TypeOption& below = *(above - 1);
    const bool beyond = above == known.end();
    const double power = known.size() == 1 ? 1
                         : beyond          ? power_between(*(above - 2), below)
                                           : power_between(below, *above);
    option.cost = ratio_power(option.output_error, below, beyond ? std::max(power, 1.0) : power);
  }
}

std::vector<Format> types_to_measure(std::span<const Format> types, double bits) {
  std::vector<Format> chosen;
  for (const double wanted : {bits - 1, bits, bits + 1}) {
    const Format nearest =
        *std::ranges::min_element(types, {}, [&](Format type) { return std::abs(type.bits() - wanted); });
    if (std::ranges::find(chosen, nearest) == chosen.end()) chosen.push_back(nearest);
  }
  return chosen;
}

std::vector<std::vector<TypeOption>> measure_costs(LanguageModel& model, const DecoderMatrices& matrices,
                                                   const MatrixTrials& trials, const OutputProbe& probe,
                                                   std::span<const Format> types, std::span<const Format> measured,
                                                   const std::function<void(std::size_t, std::size_t)>& progress) {
  std::vector<std::vector<TypeOption>> found;
  for (const DecoderMatrix& matrix : matrices.all()) {
    std::vector<TypeOption>& options = found.emplace_back(type_options(matrix, types));
    const auto mark = [&](std::span<const Format> chosen) {
      for (TypeOption& option : options) option.measured = std::ranges::find(chosen, option.type) != chosen.end();
    };
    mark(measured);
    if (!options.empty() && std::ranges::none_of(options, &TypeOption::measured)) {
      std::vector<Format> fitting;
      for (const TypeOption& option : options) fitting.push_back(option.type);
      mark(types_to_measure(fitting, measured.front().bits()));
    }
    for (TypeOption& option : options) {
      if (!option.measured) {
        option.output_error = trials.output_error(matrix, option.type);
        continue;
      }
      MatrixTrial trial = trials.encode(matrix, option.type);
      option.output_error = trial.output_error;
      lm::MatrixSwap swap(model);
      put(swap, std::move(trial));
      option.cost = probe.measure(matrix.first_block).divergence;
    }
    estimate_unmeasured(options);
    if (progress) progress(found.size(), matrices.all().size());
  }
  return found;
}

}  // namespace imago::precision
