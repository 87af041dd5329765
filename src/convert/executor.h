#pragma once

// Executes a plan: reads, encodes and writes piece by piece, all at the same time.

#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include "convert/guidance.h"
#include "convert/target_writer.h"
#include "convert/type_plan.h"

namespace imago::convert {

/// What a change of type does to the weights of a tensor: sums of squared weights and squared errors.
struct TensorError {
  double signal = 0, noise = 0;

  void add(std::span<const float> weights, std::span<const float> got);
  TensorError& operator+=(const TensorError& more) noexcept {
    signal += more.signal;
    noise += more.noise;
    return *this;
  }
  double relative_rmse() const noexcept { return noise == 0 ? 0 : std::sqrt(noise / signal); }
};

/// Writes every tensor of the plan to `target`, and does not commit. With options.measure_error, returns the errors of
/// the tensors whose type changed. Throws FormatError for values that are not finite,
/// UnsupportedError for values beyond the range of a wide type, IoError.
///
/// Memory: three batches of pieces of 64 Ki weights; and one whole tensor in float32 if it is transposed, guided by a
/// calibration, or has one scale that cannot be found piece by piece.
/// REQUIRES: one guide per tensor.
std::vector<std::optional<TensorError>> execute(std::span<const PlannedTensor> plan,
                                                std::span<const TensorGuide> guides, TargetWriter& target,
                                                const ConvertOptions& options);

}  // namespace imago::convert
