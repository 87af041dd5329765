#pragma once

// What the planners of networks and language models share: budget, windows of the text, facts of the plan file.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "imago/format.h"
#include "imago/lm.h"
#include "imago/precision.h"
#include "precision/decoder_matrices.h"

namespace imago::precision {

/// The budget of a plan and the types to spend it on.
struct PlanBudget {
  std::uint64_t bytes = 0;       ///< for the matrices
  std::vector<Format> types;     ///< to choose from
  std::vector<Format> measured;  ///< the subset of `types` to measure
};

/// Throws UsageError for options without meaning, types that a language model cannot have or that fit none of its
/// matrices, and for a budget that is too small, naming the smallest possible one.
PlanBudget plan_budget(const DecoderMatrices& matrices, const PlanOptions& options);

/// The budget in bytes for `weights` weights, given `others` bytes that do not change. Throws UsageError unless exactly
/// one of bits and size is given, and if the size is too small for the others.
std::uint64_t budget_bytes(const PlanOptions& options, std::uint64_t weights, std::uint64_t others);
/// Throws UsageError if `budget` is less than `smallest`.
void require_budget(std::uint64_t budget, std::uint64_t smallest, std::uint64_t weights, std::uint64_t others);

/// Windows of a text for three purposes. Those that judge are used for nothing else.
struct PlanWindows {
  std::vector<TokenId> measure, judge, calibrate;  ///< tokens of the windows, concatenated
};

/// Up to `measured` windows of `ids` measure and twice as many judge, spread evenly over the text, since texts change
/// as they go on; at most `calibrated` of those that do not judge calibrate. Throws UsageError for a text of fewer than
/// two windows.
PlanWindows split_windows(std::span<const TokenId> ids, std::size_t context, std::size_t measured,
                          std::size_t calibrated);

/// The "facts" of a plan file, as a JSON object.
std::string plan_facts(const PlanReport& report, const std::string& model, const std::string& measured_on,
                       const PlanOptions& options);

}  // namespace imago::precision
