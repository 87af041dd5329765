#include "convert/planned_types.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/near_names.h"
#include "imago/error.h"
#include "imago/models.h"

namespace imago::convert {

PlannedTypes::PlannedTypes(const std::string& path, const std::vector<std::string>& names) {
  const TypePlan plan = read_plan(path);
  types_.insert(plan.tensors.begin(), plan.tensors.end());
  for (const auto& [name, type] : plan.tensors) {
    if (std::ranges::find(names, name) != names.end()) continue;
    std::string near;
    for (const std::string& candidate : near_names(name, names, 3)) {
      near += fmt::format("{}'{}'", near.empty() ? "; near to it are " : ", ", candidate);
    }
    throw UsageError(
        fmt::format("{}: the model has no tensor '{}'{}; is the plan of another model?", path, name, near));
  }
}

std::optional<Format> PlannedTypes::find(const std::string& name) const {
  const auto found = types_.find(name);
  return found == types_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace imago::convert
