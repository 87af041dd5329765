#include "guided/encode_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "guided/importance.h"
#include "imago/codec.h"
#include "imago/error.h"
#include "imago/numeric.h"
#include "weights/calibrate.h"
#include "weights/scheme.h"

namespace imago::guided {

namespace {

/// Scales of least weighted error. Calibrators that say how a scale is found are obeyed; absmax and mse say nothing of
/// columns and give way.
std::vector<float> weighted_scales(std::span<const float> weights, std::size_t cols, const Scheme& scheme,
                                   const ScaleLayout& layout, std::span<const float> importance) {
  if (layout.count == 0) return {};
  if (scheme.calibrator == Calibrator::percentile || scheme.calibrator == Calibrator::absmean) {
    return derive_scales(scheme, layout, weights);
  }
  std::vector<float> whole_tensor;
  if (layout.group > cols) {
    whole_tensor.resize(weights.size());
    for (std::size_t i = 0; i < weights.size(); i += cols) {
      std::ranges::copy(importance, whole_tensor.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  std::vector<float> scales(layout.count);
  parallel_for(layout.count, std::max<std::size_t>(1, 4096 / layout.group), [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const std::span<const float> factors = whole_tensor.empty()
                                                 ? importance.subspan(i * layout.group % cols, layout.group)
                                                 : std::span<const float>(whole_tensor);
      scales[i] = derive_mse_scale(scheme.format.dtype(), weights.subspan(i * layout.group, layout.group), factors);
    }
  });
  return scales;
}

}  // namespace

EncodedMatrix encode_matrix(std::span<const float> weights, std::size_t rows, std::size_t cols, const Scheme& scheme,
                            Rounding rounding, const InputStatistics* statistics) {
  if (weights.size() != rows * cols) {
    throw ShapeError(fmt::format("{} weights are no matrix of {} x {}", weights.size(), rows, cols));
  }
  if (statistics != nullptr && statistics->second_moments.size() != cols) {
    throw UsageError(
        fmt::format("statistics of {} columns for a matrix of {}", statistics->second_moments.size(), cols));
  }
  if (rounding == Rounding::compensated) {
    throw UnsupportedError(fmt::format("{} has no error-compensating rounding", scheme.format.name()));
  }
  const Scheme checked = checked_scheme(scheme);
  const ScaleLayout layout = scale_layout(checked, rows, cols);
  const std::vector<float> importance = statistics == nullptr ? std::vector<float>() : column_importance(*statistics);
  EncodedMatrix encoded;
  encoded.codes.resize(packed_bytes(checked.format, weights.size()));
  if (checked.format.is_block()) {
    imago::encode(checked.format.block(), weights, encoded.codes, importance);
    return encoded;
  }
  encoded.scales = statistics == nullptr ? derive_scales(checked, layout, weights)
                                         : weighted_scales(weights, cols, checked, layout, importance);
  encoded.scale_group = layout.group;
  imago::encode(checked.format.dtype(), weights, {encoded.scales, encoded.scale_group}, encoded.codes);
  return encoded;
}

std::vector<float> decode_matrix(const EncodedMatrix& matrix, const Scheme& scheme, std::size_t rows,
                                 std::size_t cols) {
  std::vector<float> weights(rows * cols);
  if (scheme.format.is_block()) {
    imago::decode(scheme.format.block(), matrix.codes, weights);
  } else {
    imago::decode(scheme.format.dtype(), matrix.codes, {matrix.scales, matrix.scale_group}, weights);
  }
  return weights;
}

}  // namespace imago::guided
