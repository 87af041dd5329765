#include "precision/matrix_trials.h"

#include <algorithm>
#include <span>

#include "base/parallel.h"
#include "guided/compensate.h"
#include "imago/codec.h"

namespace imago::precision {

namespace {

lm::EncodedWeights packed(Format type, std::span<const std::byte> codes) {
  lm::EncodedWeights weights{.format = type, .packed = host_device()->allocate(codes.size())};
  host_device()->upload(codes, weights.packed, 0);
  return weights;
}

/// Rows sampled where each costs columns² operations. The errors of types are compared on the same rows, and vary
/// little between rows.
constexpr std::size_t kSampledRows = 64;

std::size_t sampling_step(std::size_t rows) { return std::max<std::size_t>(1, rows / kSampledRows); }

/// Copies the sampled rows.
std::vector<float> sampled_rows(std::span<const float> weights, std::size_t cols) {
  std::vector<float> sample;
  for (std::size_t row = 0; row < weights.size() / cols; row += sampling_step(weights.size() / cols)) {
    const std::span<const float> values = weights.subspan(row * cols, cols);
    sample.insert(sample.end(), values.begin(), values.end());
  }
  return sample;
}

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
  return sum_over_rows(rows, sampling_step(rows), [&](std::size_t row) {
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

std::vector<TypeOption> type_options(const DecoderMatrix& matrix, std::span<const Format> types) {
  std::vector<TypeOption> options;
  for (const Format type : types) {
    if (matrix.cols % static_cast<std::size_t>(type.block_values()) != 0) continue;
    options.push_back({.bytes = packed_bytes(type, static_cast<std::size_t>(matrix.weights)), .type = type});
  }
  return options;
}

const guided::InputStatistics* MatrixTrials::statistics(const DecoderMatrix& matrix, std::size_t expert) const {
  const bool known = calibration_.find(matrix.name, expert) != nullptr;
  return known ? &calibration_.require(matrix.name, expert, matrix.cols) : nullptr;
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
    const guided::InputStatistics* known = statistics(matrix, key.expert);
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
    const guided::InputStatistics* known = statistics(matrix, key.expert);
    const std::vector<float> sample =
        known == nullptr || known->products.empty() ? weights : sampled_rows(weights, matrix.cols);
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

MatrixTrial copy_of(const MatrixTrial& trial) {
  MatrixTrial copy{.parts = {}, .output_error = trial.output_error};
  for (const auto& [key, weights] : trial.parts)
    copy.parts.emplace_back(key, packed(weights.format, weights.packed.host()));
  return copy;
}

void put(lm::MatrixSwap& swap, MatrixTrial trial) {
  for (auto& [key, weights] : trial.parts) swap.put(key, std::move(weights));
}

}  // namespace imago::precision
