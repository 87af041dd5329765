#include "precision/plan_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "imago/error.h"
#include "precision/matrix_trials.h"
#include "precision/sensitivity.h"

namespace imago::precision {

namespace {

using enum BlockFormat;

/// At each size the best of its kind; others of the same size only lose to them.
constexpr std::array kUsualBlocks = {q2_k, q3_k, iq4_xs, q4_k, iq4_nl, q5_k, q6_k, q8_0};

/// Wider than this beyond the budget, a type is never worth its bytes.
constexpr double kBitsAbove = 3;

std::vector<Format> usual_types(const DecoderMatrices& matrices, double bits) {
  std::vector<Format> all(kUsualBlocks.begin(), kUsualBlocks.end()), near;
  all.emplace_back(DType::float16);
  std::ranges::copy_if(all, std::back_inserter(near), [&](Format type) { return type.bits() <= bits + kBitsAbove; });
  const bool enough = std::ranges::all_of(matrices.all(), [&](const DecoderMatrix& matrix) {
    return std::ranges::any_of(near, [&](Format type) { return fits(matrix, type); });
  });
  return enough ? near : all;
}

void check_types(const DecoderMatrices& matrices, std::span<const Format> types) {
  for (const Format type : types) {
    if (!type.is_block() && is_scaled(type.dtype())) {
      throw UsageError(fmt::format(
          "{} cannot be planned for a language model: its scales have no place in a GGUF file; choose block "
          "formats, float16, bfloat16 or float32",
          type.name()));
    }
  }
  for (const DecoderMatrix& matrix : matrices.all()) {
    if (std::ranges::any_of(types, [&](Format type) { return fits(matrix, type); })) continue;
    throw UsageError(
        fmt::format("none of these types fits '{}', whose rows have {} weights; add q8_0 or float16 to them",
                    matrix.name, matrix.cols));
  }
}

double bits_of(std::uint64_t bytes, std::uint64_t weights) {
  return weights == 0 ? 0 : 8 * static_cast<double>(bytes) / static_cast<double>(weights);
}

}  // namespace

std::uint64_t budget_bytes(const PlanOptions& options, std::uint64_t weights, std::uint64_t others) {
  if (options.bits.has_value() == options.size.has_value()) {
    throw UsageError("a plan needs a budget: either bits per weight or bytes");
  }
  if (options.bits) {
    if (!std::isfinite(*options.bits) || *options.bits <= 0 || *options.bits > 64) {
      throw UsageError(fmt::format("{} bits per weight; give more than 0 and at most 64", *options.bits));
    }
    return static_cast<std::uint64_t>(*options.bits * static_cast<double>(weights) / 8);
  }
  if (*options.size < others) {
    throw UsageError(
        fmt::format("{} bytes do not even hold the tensors that keep their type, which are {}", *options.size, others));
  }
  return *options.size - others;
}

void require_budget(std::uint64_t budget, std::uint64_t smallest, std::uint64_t weights, std::uint64_t others) {
  if (budget >= smallest) return;
  throw UsageError(
      fmt::format("{:.4g} bits per weight ({} bytes) cannot be met with these types: the smallest possible is {:.4g} "
                  "bits per weight (--bits {}), {} bytes in all",
                  bits_of(budget, weights), budget + others, bits_of(smallest, weights),
                  std::ceil(bits_of(smallest, weights) * 1000) / 1000, smallest + others));
}

PlanBudget plan_budget(const DecoderMatrices& matrices, const PlanOptions& options) {
  PlanBudget budget;
  std::uint64_t weights = 0, smallest = 0;
  for (const DecoderMatrix& matrix : matrices.all()) weights += matrix.weights;
  const std::uint64_t others = matrices.other_weights() * sizeof(float);
  budget.bytes = budget_bytes(options, weights, others);
  const double bits = bits_of(budget.bytes, weights);
  budget.types = options.types.empty() ? usual_types(matrices, bits) : options.types;
  check_types(matrices, budget.types);
  for (const DecoderMatrix& matrix : matrices.all()) {
    std::uint64_t least = UINT64_MAX;
    for (const Format type : budget.types) {
      if (fits(matrix, type)) least = std::min(least, bytes_in(matrix, type));
    }
    smallest += least;
  }
  require_budget(budget.bytes, smallest, weights, others);
  budget.measured = types_to_measure(budget.types, bits);
  return budget;
}

}  // namespace imago::precision
