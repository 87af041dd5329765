#include "precision/matrix_trials.h"

#include <span>

#include "base/parallel.h"
#include "guided/encode_matrix.h"
#include "imago/codec.h"

namespace imago::precision {

namespace {

lm::EncodedWeights packed(Format type, std::span<const std::byte> codes) {
  lm::EncodedWeights weights{.format = type, .packed = host_device()->allocate(codes.size())};
  host_device()->upload(codes, weights.packed, 0);
  return weights;
}

/// In float64, row by row and rows in their order: the same for any number of threads.
double weighted_error(std::span<const float> weights, std::span<const float> got, std::size_t cols,
                      std::span<const float> moments) {
  std::vector<double> row_errors(weights.size() / cols);
  parallel_for(row_errors.size(), 16, [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = begin; row < end; ++row) {
      double sum = 0;
      for (std::size_t i = 0; i < cols; ++i) {
        const double error = static_cast<double>(weights[row * cols + i]) - static_cast<double>(got[row * cols + i]);
        sum += error * error * (moments.empty() ? 1.0 : static_cast<double>(moments[i]));
      }
      row_errors[row] = sum;
    }
  });
  double sum = 0;
  for (const double error : row_errors) sum += error;
  return sum;
}

}  // namespace

bool fits(const DecoderMatrix& matrix, Format type) noexcept {
  return matrix.cols % static_cast<std::size_t>(type.block_values()) == 0;
}

std::uint64_t bytes_in(const DecoderMatrix& matrix, Format type) noexcept {
  return packed_bytes(type, static_cast<std::size_t>(matrix.weights));
}

MatrixTrial MatrixTrials::encode(const DecoderMatrix& matrix, Format type) const {
  MatrixTrial trial;
  for (const models::MatrixKey& key : matrix.parts) {
    const std::vector<float> weights = matrices_.weights(key);
    const std::size_t rows = weights.size() / matrix.cols;
    const guided::InputStatistics* known = calibration_.find(matrix.name, key.expert);
    if (known != nullptr) known = &calibration_.require(matrix.name, key.expert, matrix.cols);
    const guided::EncodedMatrix encoded = guided::encode_matrix(
        weights, rows, matrix.cols, type, known == nullptr ? Rounding::nearest : rounding_, known);
    const std::vector<float> back = guided::decode_matrix(encoded, type, rows, matrix.cols);
    trial.output_error += weighted_error(
        weights, back, matrix.cols, known == nullptr ? std::span<const float>() : std::span(known->second_moments));
    trial.parts.emplace_back(key, packed(type, encoded.codes));
  }
  return trial;
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

}  // namespace imago::precision
