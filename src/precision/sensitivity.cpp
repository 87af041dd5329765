#include "precision/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/parallel.h"
#include "guided/compensate.h"
#include "imago/codec.h"
#include "lm/matrix_encoder.h"

namespace imago::precision {

namespace {

/// Rows sampled where each costs columns² operations. The errors of types are compared on the same rows, and vary
/// little between rows.
constexpr std::size_t kSampledRows = 64;

/// Sums error_of(row) over evenly spaced rows and scales the sum up to all rows. Adds in order, so that the result does
/// not depend on the number of threads.
template <class ErrorOf>
double sum_over_rows(std::size_t rows, std::size_t step, ErrorOf&& error_of) {
  std::vector<double> errors((rows + step - 1) / step);
  parallel_for(errors.size(), 4, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) errors[i] = error_of(i * step);
  });
  double sum = 0;
  for (const double error : errors) sum += error;
  return sum * static_cast<double>(rows) / static_cast<double>(errors.size());
}

/// Σ e[i]² · moment[i] of each row; unknown moments are 1.
double error_by_columns(std::span<const float> weights, std::span<const float> got, std::size_t cols,
                        std::span<const float> moments) {
  return sum_over_rows(weights.size() / cols, 1, [&](std::size_t row) {
    double sum = 0;
    for (std::size_t i = row * cols; i < (row + 1) * cols; ++i) {
      const double error = static_cast<double>(weights[i]) - static_cast<double>(got[i]);
      sum += error * error * (moments.empty() ? 1.0 : static_cast<double>(moments[i - row * cols]));
    }
    return sum;
  });
}

/// Σ e[i] · e[j] · product[i][j] of each row: the true error of the output, including errors that compensate each
/// other.
double error_by_products(std::span<const float> weights, std::span<const float> got, std::size_t cols,
                         std::span<const float> products) {
  const std::size_t rows = weights.size() / cols;
  return sum_over_rows(rows, std::max<std::size_t>(1, rows / kSampledRows), [&](std::size_t row) {
    std::vector<float> errors(cols), moved(cols);
    for (std::size_t i = 0; i < cols; ++i) errors[i] = weights[row * cols + i] - got[row * cols + i];
    for (std::size_t i = 0; i < cols; ++i) {  // symmetric, so rows of the products serve as columns
      const float* const line = products.data() + i * cols;
      for (std::size_t j = 0; j < cols; ++j) moved[j] += errors[i] * line[j];
    }
    double sum = 0;
    for (std::size_t i = 0; i < cols; ++i) sum += static_cast<double>(errors[i]) * static_cast<double>(moved[i]);
    return std::max(sum, 0.0);
  });
}

double mean_output_error(std::span<const float> weights, std::span<const float> got, std::size_t cols,
                         const guided::InputStatistics* known) {
  if (known == nullptr) return error_by_columns(weights, got, cols, {});
  if (known->products.empty()) return error_by_columns(weights, got, cols, known->second_moments);
  return error_by_products(weights, got, cols, known->products);
}

}  // namespace

lm::EncodedWeights packed(Format type, std::span<const std::byte> codes) {
  lm::EncodedWeights weights{.format = type, .packed = host_device()->allocate(codes.size())};
  host_device()->upload(codes, weights.packed, 0);
  return weights;
}

std::vector<TypeOption> type_options(const DecoderMatrix& matrix, std::span<const Format> types) {
  std::vector<TypeOption> options;
  for (const Format type : types) {
    if (matrix.cols % static_cast<std::size_t>(type.block_values()) != 0) continue;
    options.push_back({.bytes = packed_bytes(type, static_cast<std::size_t>(matrix.weights)), .type = type});
  }
  return options;
}

guided::EncodedMatrix MatrixTrials::pack(std::span<const float> weights, std::size_t cols, Format type,
                                         const guided::InputStatistics* known) const {
  const Rounding rounding = known != nullptr && guided::can_compensate(type) ? rounding_ : Rounding::nearest;
  return guided::encode_matrix(weights, weights.size() / cols, cols, type, rounding, known);
}

MatrixTrial MatrixTrials::encode(const DecoderMatrix& matrix, Format type) const {
  MatrixTrial trial;
  for (const models::MatrixKey& key : matrix.parts) {
    const std::vector<float> weights = matrices_.weights(key);
    const guided::InputStatistics* known = calibration_.find(matrix.name, key.expert, matrix.cols);
    const guided::EncodedMatrix encoded = pack(weights, matrix.cols, type, known);
    const std::vector<float> back = guided::decode_matrix(encoded, type, weights.size() / matrix.cols, matrix.cols);
    trial.output_error += mean_output_error(weights, back, matrix.cols, known);
    trial.parts.emplace_back(key, packed(type, encoded.codes));
  }
  return trial;
}

double MatrixTrials::output_error(const DecoderMatrix& matrix, Format type) const {
  double sum = 0;
  for (const models::MatrixKey& key : matrix.parts) {
    const std::vector<float> weights = matrices_.weights(key);
    const guided::InputStatistics* known = calibration_.find(matrix.name, key.expert, matrix.cols);
    const std::vector<float> sample =
        known == nullptr || known->products.empty() ? weights : guided::sample_rows(weights, matrix.cols, kSampledRows);
    const std::vector<float> back =
        guided::decode_matrix(pack(sample, matrix.cols, type, known), type, sample.size() / matrix.cols, matrix.cols);
    sum += mean_output_error(sample, back, matrix.cols, known) * static_cast<double>(weights.size()) /
           static_cast<double>(sample.size());
  }
  return sum;
}

MatrixTrial MatrixTrials::original(const DecoderMatrix& matrix) const {
  MatrixTrial trial;
  for (const models::MatrixKey& key : matrix.parts) {
    const std::vector<float> weights = matrices_.weights(key);
    trial.parts.emplace_back(key, packed(DType::float32, std::as_bytes(std::span(weights))));
  }
  return trial;
}

void put(lm::MatrixSwap& swap, MatrixTrial trial) {
  for (auto& [key, weights] : trial.parts) swap.put(key, std::move(weights));
}

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
                                                   const MatrixTrials& trials, OutputProbe& probe,
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
