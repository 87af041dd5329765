#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "imago/format.h"
#include "imago/precision.h"
#include "precision/decoder_matrices.h"

namespace imago::precision {

/// What a plan may spend, and on what.
struct PlanBudget {
  std::uint64_t bytes = 0;       ///< of the matrices
  std::vector<Format> types;     ///< to choose from
  std::vector<Format> measured;  ///< of them, those that are measured
};

/// Throws UsageError for options without meaning, types that a language model cannot have or that fit none of its
/// matrices, and a budget that is too small, saying the smallest possible.
PlanBudget plan_budget(const DecoderMatrices& matrices, const PlanOptions& options);

/// The budget in bytes for `weights` weights beside `others` bytes that do not change. Throws UsageError unless exactly
/// one of bits and size is given, and if the size does not hold the others.
std::uint64_t budget_bytes(const PlanOptions& options, std::uint64_t weights, std::uint64_t others);
/// Throws UsageError if it is less than that.
void require_budget(std::uint64_t budget, std::uint64_t smallest, std::uint64_t weights, std::uint64_t others);

}  // namespace imago::precision
