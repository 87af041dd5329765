#include "precision/plan_windows.h"

#include <fmt/format.h>

#include <algorithm>

#include "imago/error.h"

namespace imago::precision {

PlanWindows split_windows(std::span<const TokenId> ids, std::size_t context, std::size_t measured,
                          std::size_t calibrated) {
  const std::size_t windows = ids.size() / context;
  if (windows < 2) {
    throw UsageError(
        fmt::format("the text has {} tokens; a plan needs two windows of {} at least, one to measure and one to judge",
                    ids.size(), context));
  }
  const std::size_t measuring = std::clamp<std::size_t>(measured, 1, std::max<std::size_t>(1, windows / 3));
  const std::size_t judging = std::min(2 * measuring, windows - measuring);
  const std::size_t chosen = measuring + judging;
  PlanWindows split;
  std::vector<std::size_t> free;
  const auto append = [&](std::vector<TokenId>& to, std::size_t window) {
    const std::span<const TokenId> tokens = ids.subspan(window * context, context);
    to.insert(to.end(), tokens.begin(), tokens.end());
  };
  std::size_t next = 0;
  for (std::size_t window = 0; window < windows; ++window) {
    // The places of the chosen ones are next · windows / chosen; the middle one of three measures.
    const bool is_chosen = next < chosen && window == next * windows / chosen;
    const bool judges = is_chosen && (chosen < 3 ? next == 1 : next % 3 != 1);
    if (is_chosen) append(judges ? split.judge : split.measure, window);
    if (is_chosen) ++next;
    if (!judges) free.push_back(window);
  }
  const std::size_t count = std::min(calibrated, free.size());
  for (std::size_t i = 0; i < count; ++i) append(split.calibrate, free[i * free.size() / count]);
  return split;
}

}  // namespace imago::precision
