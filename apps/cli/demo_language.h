#pragma once

// The part of `imago demo` about a language model: one model, several precisions, side by side.

#include <cstdint>
#include <string>
#include <vector>

#include "imago/lm.h"

namespace imago::cli {

struct DemoModel {
  std::string type;
  std::uint64_t parameters = 0;
  std::uint64_t bytes = 0;           ///< in memory
  DivergenceReport divergence = {};  ///< from the model as it is stored, on a text that it wrote
  double tokens_per_second = 0;      ///< while it wrote the text
  std::string text = {};             ///< how it goes on, always the most likely token
};

constexpr const char* kDemoPrompt = "Up betimes, and to the office, where";

/// The model as stored and in types that take ever fewer bits. A bar unless `quiet`. None in a build without
/// language models. Throws as LanguageModel::load.
std::vector<DemoModel> measure_demo_models(const std::string& path, bool quiet);

}  // namespace imago::cli
