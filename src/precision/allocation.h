#pragma once

// Chooses one of several types for each tensor so that all fit a budget at the least cost.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "imago/format.h"

namespace imago::precision {

/// One type for a tensor, the others unchanged.
struct TypeOption {
  std::uint64_t bytes = 0;
  double cost = 0;  ///< mean KL or loss that it adds; measurement noise can make it negative
  Format type = DType::float32;
  double output_error = 0;  ///< MatrixTrial::output_error
  bool measured = false;    ///< else the cost is estimated from measured ones
};

/// The index of the option of each tensor.
using Choices = std::vector<std::size_t>;

/// The index of the option for each tensor that minimises the total cost within `budget` bytes; none if even the
/// smallest options do not fit. Exact if the budget is at most 2^16 times the greatest common divisor of all
/// sizes; else sizes are rounded up to a unit of 2^-16 of the budget, so that the result always fits and wastes at most
/// that much per tensor, which is then spent greedily. Time: tensors · options · 2^16 at most; memory: tensors · 2^16
/// bytes. REQUIRES: each tensor has 1 to 255 options with finite costs.
std::optional<Choices> allocate(std::span<const std::vector<TypeOption>> tensors, std::uint64_t budget);

/// The sum of the smallest options.
std::uint64_t smallest_size(std::span<const std::vector<TypeOption>> tensors);

}  // namespace imago::precision
