#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "guided/calibration.h"
#include "imago/format.h"
#include "imago/numeric.h"
#include "imago/weights.h"
#include "quant/scheme.h"

namespace imago::guided {

/// The cost of an error in each column: its second moment, or another factor >= 0, relative to the mean. Columns that
/// were zero throughout the text still count a little, since another text may use them. Throws UsageError for factors
/// that are negative or not finite.
std::vector<float> relative_importance(std::span<const float> factors);

/// Scales of least weighted error, and zero points where the scheme has them, one per group of `layout`. The
/// calibrators percentile and absmean are obeyed; absmax and mse are replaced by this search.
ScaleValues weighted_scales(std::span<const float> weights, std::size_t cols, const Scheme& scheme,
                            const ScaleLayout& layout, std::span<const float> importance);

/// The scale under which `weights` rounded to `dtype` have the least squared error, weighted by `importance` (one
/// factor >= 0 per weight). Integers of at most 8 bits have a fast search, other types use derive_mse_scale. Throws
/// ShapeError if the lengths differ.
float weighted_scale(DType dtype, std::span<const float> weights, std::span<const float> importance);
/// The same with a zero point where `scheme` has one.
AsymmetricScale weighted_scale(const Scheme& scheme, std::span<const float> weights, std::span<const float> importance);

}  // namespace imago::guided
