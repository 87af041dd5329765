#pragma once

// Two language models on a text, side by side.

#include <string>

#include "imago/precision.h"

namespace imago::precision {

/// REQUIRES: options.text. Throws as LanguageModel::load and measure_divergence; UnsupportedError in a build without
/// language models.
DivergenceReport compare_on_text(const std::string& a, const std::string& b, const CompareOptions& options);

}  // namespace imago::precision
