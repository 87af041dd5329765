#pragma once

// Chooses one of several types for each tensor so that all fit a budget at the least cost.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace imago::precision {

/// One way to store a tensor.
struct StoredOption {
  std::uint64_t bytes = 0;
  double cost = 0;  ///< added loss; measurement noise can make it negative
};

/// The index of the option for each tensor that minimises the total cost within `budget` bytes; none if even the
/// smallest options do not fit. Exact if the budget is at most 2^16 times the greatest common divisor of all
/// sizes; else sizes are rounded up to a unit of 2^-16 of the budget, so that the result always fits and wastes at most
/// that much per tensor, which is then spent greedily. Time: tensors · options · 2^16 at most; memory: tensors · 2^16
/// bytes. REQUIRES: each tensor has 1 to 255 options with finite costs.
std::optional<std::vector<std::size_t>> allocate(std::span<const std::vector<StoredOption>> tensors,
                                                 std::uint64_t budget);

/// The sum of the smallest options.
std::uint64_t smallest_size(std::span<const std::vector<StoredOption>> tensors);

}  // namespace imago::precision
