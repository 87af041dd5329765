#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "imago/lm.h"

namespace imago::precision {

/// Windows of a text for three purposes. Those that judge serve no other.
struct PlanWindows {
  std::vector<TokenId> measure, judge, calibrate;  ///< tokens, window behind window
};

/// `ids` are whole windows. Up to `measured` of them measure and twice as many judge, all spread evenly over the text,
/// since texts change as they go on; at most `calibrated` of those that do not judge calibrate. Throws UsageError for a
/// text of fewer than two windows.
PlanWindows split_windows(std::span<const TokenId> ids, std::size_t context, std::size_t measured,
                          std::size_t calibrated);

}  // namespace imago::precision
