#pragma once

// How fast the rotary pairs of a model turn.

#include <optional>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "models/traits.h"

namespace imago::models {

/// `divisors`: rope_freqs of GGUF files, one per pair, or empty. If given, they replace all other
/// scaling. Throws UsageError if their number is wrong or one is not positive.
kernels::RopeSettings rope_settings(const Rope& rope, std::span<const float> divisors);

/// 0.1 · ln(factor) + 1, what yarn multiplies cosines and sines with; 1 below a factor of 1.
double yarn_attention_factor(double factor) noexcept;

/// llama3 scaling as GGUF stores it: not the rule, but what it divides the frequency of each pair by.
std::vector<float> llama3_divisors(const Rope& rope);
/// The scaling that gives these divisors; none if none is found. Tries the factors 1 and 4 that all models have, every
/// power of two as context, and any factor.
std::optional<RopeScaling> llama3_scaling(const Rope& rope, std::span<const float> divisors);

/// Likewise of pairs of which only the first ones turn: 1 for those, and a large number for the others.
std::vector<float> proportional_divisors(const Rope& rope);
std::optional<RopeScaling> proportional_scaling(std::span<const float> divisors);

}  // namespace imago::models
