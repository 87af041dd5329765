#pragma once

// Choosing one of several types for each tensor so that the whole fits a budget and costs least.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace imago::precision {

/// One way to store a tensor.
struct StoredOption {
  std::uint64_t bytes = 0;
  double cost = 0;  ///< what it adds to the loss; may be negative by the noise of a measurement
};

/// The choice for each tensor, by its place among the options, of least total cost with at most `budget` bytes; none if
/// even the smallest options do not fit. Exact if the budget is at most 2^16 times the greatest common divisor of all
/// sizes; else sizes are rounded up to a unit of 2^-16 of the budget, so that the result always fits and misses at most
/// that much per tensor, which is then spent greedily. Time: tensors · options · 2^16 at most; memory: tensors · 2^16
/// bytes. REQUIRES: each tensor has an option and at most 255, costs are finite.
std::optional<std::vector<std::size_t>> allocate(std::span<const std::vector<StoredOption>> tensors,
                                                 std::uint64_t budget);

/// Bytes of the smallest options together.
std::uint64_t smallest_size(std::span<const std::vector<StoredOption>> tensors);

}  // namespace imago::precision
