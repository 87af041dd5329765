#pragma once

#include <string>

#include "convert/guidance.h"
#include "imago/models.h"
#include "models/recipe.h"

namespace imago::convert {

/// Plans, writes unless it is a dry run, and reports; the forms of the report are left to the caller.
ConvertReport run_conversion(const models::ModelRecipe& recipe, const std::string& out, const ConvertOptions& options,
                             const Guidance& guidance = {});

}  // namespace imago::convert
