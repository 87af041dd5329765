#include "guided/encode_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "guided/compensate.h"
#include "guided/importance.h"
#include "imago/codec.h"
#include "imago/error.h"

namespace imago::guided {

namespace {

/// Shared by the matrices that read the same inputs: it is costly to make.
std::shared_ptr<const Feedback> feedback_of(const InputStatistics& statistics) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (!statistics.feedback) statistics.feedback = std::make_shared<const Feedback>(statistics);
  return statistics.feedback;
}

}  // namespace

EncodedMatrix encode_matrix(std::span<const float> weights, std::size_t rows, std::size_t cols, const Scheme& scheme,
                            Rounding rounding, const InputStatistics* statistics) {
  if (weights.size() != rows * cols) {
    throw ShapeError(fmt::format("{} weights do not make a matrix of {} x {}", weights.size(), rows, cols));
  }
  if (statistics != nullptr && statistics->second_moments.size() != cols) {
    throw UsageError(
        fmt::format("statistics of {} columns for a matrix of {}", statistics->second_moments.size(), cols));
  }
  const Scheme checked = checked_scheme(scheme);
  if (rounding == Rounding::compensated) {
    if (statistics == nullptr) throw UsageError("error-compensating rounding needs a calibration");
    if (!can_compensate(checked.format)) {
      throw UnsupportedError(fmt::format("{} has no error-compensating rounding", checked.format.name()));
    }
    scale_layout(checked, rows, cols);
    return encode_compensated(weights, rows, checked, *statistics, *feedback_of(*statistics));
  }
  const ScaleLayout layout = scale_layout(checked, rows, cols);
  const std::vector<float> importance =
      statistics == nullptr ? std::vector<float>() : relative_importance(statistics->second_moments);
  EncodedMatrix encoded;
  encoded.codes.resize(packed_bytes(checked.format, weights.size()));
  if (checked.format.has_scales()) {
    encoded.set_scales(statistics == nullptr ? derive_scales(checked, layout, weights)
                                             : weighted_scales(weights, cols, checked, layout, importance),
                       layout.group);
  }
  imago::encode(checked.format, weights, encoded.scaling(), encoded.codes, importance);
  return encoded;
}

std::vector<float> decode_matrix(const EncodedMatrix& matrix, const Scheme& scheme, std::size_t rows,
                                 std::size_t cols) {
  std::vector<float> weights(rows * cols);
  imago::decode(scheme.format, matrix.codes, matrix.scaling(), weights);
  return weights;
}

std::vector<float> sample_rows(std::span<const float> weights, std::size_t cols, std::size_t most) {
  const std::size_t rows = weights.size() / cols;
  std::vector<float> sample;
  for (std::size_t row = 0; row < rows; row += std::max<std::size_t>(1, rows / most)) {
    const std::span<const float> values = weights.subspan(row * cols, cols);
    sample.insert(sample.end(), values.begin(), values.end());
  }
  return sample;
}

}  // namespace imago::guided
