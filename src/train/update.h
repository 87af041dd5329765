#pragma once

// One optimizer step on plain arrays: the formulas, wherever the arrays come from.

#include <cstddef>
#include <cstdint>
#include <span>

#include "imago/train.h"
#include "kernels/ops_args.h"

namespace imago {

/// How many arrays of moments a kind keeps beside the weights.
int moment_count(OptimizerKind kind) noexcept;

/// Throws UsageError for settings that make no sense.
void check_optimizer(const OptimizerOptions& options);

/// What the formulas need in step `step` (from 1) at `rate`, computed once in double.
class UpdateRule {
 public:
  /// `gradient_factor` multiplies each element of the gradient after it was clipped.
  UpdateRule(const OptimizerOptions& options, std::uint64_t step, double rate, double gradient_factor = 1);

  /// Everything except the arrays.
  kernels::UpdateArgs arguments(bool not_negative) const noexcept;

  /// Changes `weights` and the moments (spans of the same length, empty where the kind keeps none); with
  /// `not_negative`, weights below 0 become 0. The same bits for every number of threads.
  void apply(std::span<float> weights, std::span<const float> gradient, std::span<float> moment1,
             std::span<float> moment2, bool not_negative) const;

 private:
  kernels::UpdateArgs args_;  // without arrays and floor
};

/// The sum of the squares of the clipped elements, the same for every number of threads. It is finite exactly if the
/// gradient is: squares of float32 cannot overflow in double.
double clipped_square_sum(std::span<const float> gradient, float clip_element);

}  // namespace imago
