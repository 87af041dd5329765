#include "guided/calibration.h"

#include <fmt/format.h>

#include "imago/error.h"

namespace imago::guided {

namespace {

std::string place(const std::string& path) { return path.empty() ? path : path + " "; }

}  // namespace

const InputStatistics* Calibration::find(std::string_view name, std::size_t expert) const noexcept {
  const auto found = matrices.find({std::string(name), expert});
  return found == matrices.end() || found->second->rows == 0 ? nullptr : found->second.get();
}

const InputStatistics& Calibration::require(std::string_view name, std::size_t expert, std::size_t columns) const {
  const InputStatistics* found = find(name, expert);
  if (found == nullptr) {
    throw UsageError(fmt::format("the calibration {}knows nothing of '{}': it is of another model", place(path), name));
  }
  if (found->second_moments.size() != columns) {
    throw UsageError(fmt::format("the calibration {}has {} columns for '{}', and the matrix {}: it is of another model",
                                 place(path), found->second_moments.size(), name, columns));
  }
  return *found;
}

}  // namespace imago::guided
