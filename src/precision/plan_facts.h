#pragma once

#include <string>

#include "imago/precision.h"

namespace imago::precision {

/// What a plan file says about itself, as a JSON object.
std::string plan_facts(const PlanReport& report, const std::string& model, const std::string& measured_on,
                       const PlanOptions& options);

}  // namespace imago::precision
