#pragma once

// Compares two language models on a text.

#include <string>

#include "imago/precision.h"

namespace imago::precision {

/// REQUIRES: options.text. Throws like LanguageModel::load and measure_divergence; UnsupportedError in a build without
/// language models.
DivergenceReport compare_on_text(const std::string& a, const std::string& b, const CompareOptions& options);

}  // namespace imago::precision
