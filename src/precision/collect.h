#pragma once

// Runs a text through a model and notes what its matrices see.

#include <cstddef>
#include <functional>
#include <span>

#include "guided/calibration.h"
#include "imago/lm.h"

namespace imago::precision {

struct CollectOptions {
  std::size_t context = 512;  ///< tokens of a window; the last incomplete one is dropped
  bool products = false;      ///< also what error-compensating rounding needs: columns² values per input
  std::function<void(std::size_t done, std::size_t total)> progress = {};  ///< windows
};

/// Adds the windows of `ids` to `calibration`, which may hold earlier ones. Throws UsageError for ids that do not fill
/// a window, FormatError if activations are not finite, naming the matrix.
void collect(const LanguageModel& model, std::span<const TokenId> ids, const CollectOptions& options,
             guided::Calibration& calibration);

}  // namespace imago::precision
