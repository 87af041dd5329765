#include "precision/sensitivity.h"

#include <algorithm>
#include <cmath>

#include "lm/matrix_swap.h"

namespace imago::precision {

namespace {

/// Powers by which measured divergences follow errors. Two figures near each other may say anything by chance.
constexpr double kLeastPower = 0.7, kMostPower = 2;
/// A divergence below this is rounding, and so would be its logarithm.
constexpr double kLeastDivergence = 1e-9;

double ratio_power(double value, double anchor_error, double anchor, double power) {
  if (value <= 0) return 0;
  return anchor * std::pow(value / anchor_error, power);
}

}  // namespace

void estimate_unmeasured(std::span<TypeCost> costs) {
  std::vector<const TypeCost*> known;
  for (const TypeCost& cost : costs) {
    if (cost.measured && cost.output_error > 0) known.push_back(&cost);
  }
  if (known.empty()) return;  // errors of 0: nothing moves
  std::ranges::sort(known, {}, &TypeCost::output_error);
  const TypeCost fine = *known.front(), coarse = *known.back();
  const double least = std::max(fine.divergence, kLeastDivergence), most = std::max(coarse.divergence, least);
  double power = 1;
  if (coarse.output_error > 1.1 * fine.output_error) {
    power =
        std::clamp(std::log(most / least) / std::log(coarse.output_error / fine.output_error), kLeastPower, kMostPower);
  }
  for (TypeCost& cost : costs) {
    if (cost.measured) continue;
    if (cost.output_error <= fine.output_error) {
      cost.divergence = ratio_power(cost.output_error, fine.output_error, least, 1);
    } else if (cost.output_error < coarse.output_error) {
      cost.divergence = ratio_power(cost.output_error, fine.output_error, least, power);
    } else {
      cost.divergence = ratio_power(cost.output_error, coarse.output_error, most, std::max(power, 1.0));
    }
  }
}

std::vector<Format> types_to_measure(std::span<const Format> types, double bits) {
  const auto nearest = [&](double wanted) {
    return *std::ranges::min_element(types, {}, [&](Format type) { return std::abs(type.bits() - wanted); });
  };
  std::vector<Format> chosen = {nearest(bits - 1)};
  if (const Format above = nearest(bits + 1); above != chosen.front()) chosen.push_back(above);
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
      MatrixTrial trial = trials.encode(matrix, type);
      TypeCost cost{.type = type, .bytes = bytes_in(matrix, type), .output_error = trial.output_error};
      if (std::ranges::find(wanted, type) != wanted.end()) {
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
