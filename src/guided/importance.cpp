#include "guided/importance.h"

#include <algorithm>
#include <cmath>

#include "imago/error.h"

namespace imago::guided {

namespace {

/// Of the average: what no column goes below. With 1e-3, a column that was never used decides nothing beside used ones,
/// and is rounded with care where none is.
constexpr double kLeastImportance = 1e-3;

}  // namespace

std::vector<float> column_importance(const InputStatistics& statistics) {
  double sum = 0;
  for (const float moment : statistics.second_moments) {
    if (!(moment >= 0) || !std::isfinite(moment)) {
      throw UsageError("the calibration has second moments that are negative or not finite");
    }
    sum += static_cast<double>(moment);
  }
  const double mean = sum / static_cast<double>(statistics.second_moments.size());
  std::vector<float> factors(statistics.second_moments.size(), 1.0f);
  if (!(mean > 0)) return factors;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    factors[i] =
        static_cast<float>(std::max(static_cast<double>(statistics.second_moments[i]) / mean, kLeastImportance));
  }
  return factors;
}

}  // namespace imago::guided
