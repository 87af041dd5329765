#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "guided/calibration.h"
#include "imago/weights.h"
#include "quant/scheme.h"

namespace imago::guided {

/// What an error in a column costs, one factor per column, 1 on average: its second moment. Columns that the text left
/// at zero count a little all the same: another text may use them. Throws UsageError for moments that are negative or
/// not finite.
std::vector<float> column_importance(const InputStatistics& statistics);

/// The same of any factors >= 0: 1 on average, none below a small share of that.
std::vector<float> relative_importance(std::span<const float> factors);

/// Scales of least weighted error, one per group of `layout`. Calibrators that say how a scale is found (percentile,
/// absmean) are obeyed; absmax and mse say nothing of columns and give way.
std::vector<float> weighted_scales(std::span<const float> weights, std::size_t cols, const Scheme& scheme,
                                   const ScaleLayout& layout, std::span<const float> importance);

}  // namespace imago::guided
