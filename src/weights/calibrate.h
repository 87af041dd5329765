#pragma once

#include <span>
#include <vector>

#include "quant/scheme.h"

namespace imago {

/// The scales that `scheme` derives for `weights`, one per group of `layout`. Runs on all threads of the pool; the
/// scales do not depend on how many there are. REQUIRES: a checked scheme and its layout for these weights.
std::vector<float> derive_scales(const Scheme& scheme, const ScaleLayout& layout, std::span<const float> weights);

}  // namespace imago
