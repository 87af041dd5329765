#pragma once

// Carries out a plan: reads, computes and writes piece by piece, all at the same time.

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "convert/guidance.h"
#include "convert/target_writer.h"
#include "convert/type_plan.h"

namespace imago::convert {

/// What a change of type does to the weights of a tensor: sums of squares.
struct TensorError {
  double signal = 0, noise = 0;
  double relative_rmse() const noexcept { return noise == 0 ? 0 : std::sqrt(noise / signal); }
};

/// Writes every tensor of the plan to `target`, and does not commit. Returns the errors of the tensors whose type
/// changed, where options.measure_error asks for them. Throws FormatError for values that are not finite,
/// UnsupportedError for values beyond the range of a wide type, IoError.
///
/// Memory: three batches of pieces of 64 Ki weights, and in float32 the tensor under way where its scale depends on all
/// of it in a way that cannot be found piece by piece, where it is transposed, or where a calibration guides it.
/// REQUIRES: one guide per tensor.
std::vector<std::optional<TensorError>> execute(std::span<const PlannedTensor> plan,
                                                std::span<const TensorGuide> guides, TargetWriter& target,
                                                const ConvertOptions& options);

/// Bytes of the source that a tensor is made of, scales included.
std::uint64_t source_bytes(const PlannedTensor& planned);

}  // namespace imago::convert
