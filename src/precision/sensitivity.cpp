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
double ratio_power(double error, const TypeCost& known, double power) {
  return error <= 0 ? 0 : known.divergence * std::pow(error / known.output_error, power);
}

double power_between(const TypeCost& fine, const TypeCost& coarse) {
  if (coarse.output_error <= 1.1 * fine.output_error) return 1;
  return std::clamp(std::log(coarse.divergence / fine.divergence) / std::log(coarse.output_error / fine.output_error),
                    kLeastPower, kMostPower);
}

}  // namespace

void estimate_unmeasured(std::span<TypeCost> costs) {
  std::vector<TypeCost> known;
  for (const TypeCost& cost : costs) {
    if (cost.measured && cost.output_error > 0) known.push_back(cost);
  }
  if (known.empty()) return;  // all errors are 0
  std::ranges::sort(known, {}, &TypeCost::output_error);
  known.front().divergence = std::max(known.front().divergence, kLeastDivergence);
  for (std::size_t i = 1; i < known.size(); ++i) {  // a larger error with a lower cost is noise
    known[i].divergence = std::max(known[i].divergence, known[i - 1].divergence);
  }
  for (TypeCost& cost : costs) {
    if (cost.measured) continue;
    const auto above = std::ranges::upper_bound(known, cost.output_error, {}, &TypeCost::output_error);
    if (above == known.begin()) {
      cost.divergence = ratio_power(cost.output_error, *above, 1);
      continue;
    }
    // Between two measured costs, their own power; beyond the coarsest, the power of the last two.
    const TypeCost& below = *(above - 1);
    const bool beyond = above == known.end();
    const double power = known.size() == 1 ? 1
                         : beyond          ? power_between(*(above - 2), below)
                                           : power_between(below, *above);
    cost.divergence = ratio_power(cost.output_error, below, beyond ? std::max(power, 1.0) : power);
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

std::vector<std::vector<TypeCost>> measure_costs(LanguageModel& model, const DecoderMatrices& matrices,
                                                 const MatrixTrials& trials, const OutputProbe& probe,
                                                 std::span<const Format> types, std::span<const Format> measured,
                                                 const std::function<void(std::size_t, std::size_t)>& progress) {
  std::vector<std::vector<TypeCost>> costs;
  for (const DecoderMatrix& matrix : matrices.all()) {
    std::vector<TypeCost>& of_matrix = costs.emplace_back();
    std::vector<Format> fitting, wanted;
    std::ranges::copy_if(types, std::back_inserter(fitting), [&](Format type) { return fits(matrix, type); });
    std::ranges::copy_if(measured, std::back_inserter(wanted), [&](Format type) { return fits(matrix, type); });
    if (wanted.empty() && !fitting.empty()) wanted = types_to_measure(fitting, measured.front().bits());
    for (const Format type : fitting) {
      TypeCost cost{.type = type, .bytes = bytes_in(matrix, type)};
      if (std::ranges::find(wanted, type) == wanted.end()) {
        cost.output_error = trials.output_error(matrix, type);
      } else {
        MatrixTrial trial = trials.encode(matrix, type);
        cost.output_error = trial.output_error;
        lm::MatrixSwap swap(model);
        put(swap, std::move(trial));
        cost.divergence = probe.measure(matrix.first_block).divergence;
        cost.measured = true;
      }
      of_matrix.push_back(cost);
    }
    estimate_unmeasured(of_matrix);
    if (progress) progress(costs.size(), matrices.all().size());
  }
  return costs;
}

}  // namespace imago::precision
