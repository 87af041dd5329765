#pragma once

#include <vector>

#include "guided/calibration.h"

namespace imago::guided {

/// What an error in a column costs, one factor per column, 1 on average: its second moment. Columns that the text left
/// at zero count a little all the same: another text may use them. Throws UsageError for moments that are negative or
/// not finite.
std::vector<float> column_importance(const InputStatistics& statistics);

}  // namespace imago::guided
