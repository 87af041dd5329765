#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "imago/format.h"

namespace imago::convert {

/// The types of a plan, checked against the model at hand.
class PlannedTypes {
 public:
  PlannedTypes() = default;
  /// Reads the plan. `names` are those of the model. Throws UsageError for a name that is not among them, with those
  /// near to it, and as read_plan.
  PlannedTypes(const std::string& path, const std::vector<std::string>& names);

  /// None for what the plan does not name.
  std::optional<Format> find(const std::string& name) const;

 private:
  std::map<std::string, Format> types_;
};

}  // namespace imago::convert
