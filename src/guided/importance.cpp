#include "guided/importance.h"

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "guided/scale_search.h"
#include "imago/error.h"
#include "weights/calibrate.h"

namespace imago::guided {

namespace {

/// Of the average: what no column goes below. With 1e-3, a column that was never used decides nothing beside used ones,
/// and is rounded with care where none is.
constexpr double kLeastImportance = 1e-3;

}  // namespace

std::vector<float> relative_importance(std::span<const float> factors) {
  double sum = 0;
  for (const float factor : factors) {
    if (!(factor >= 0) || !std::isfinite(factor)) {
      throw UsageError("the calibration has second moments that are negative or not finite");
    }
    sum += static_cast<double>(factor);
  }
  const double mean = sum / static_cast<double>(factors.size());
  std::vector<float> relative(factors.size(), 1.0f);
  if (!(mean > 0)) return relative;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    relative[i] = static_cast<float>(std::max(static_cast<double>(factors[i]) / mean, kLeastImportance));
  }
  return relative;
}

std::vector<float> column_importance(const InputStatistics& statistics) {
  return relative_importance(statistics.second_moments);
}

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
      scales[i] = weighted_scale(scheme.format.dtype(), weights.subspan(i * layout.group, layout.group), factors);
    }
  });
  return scales;
}

}  // namespace imago::guided
