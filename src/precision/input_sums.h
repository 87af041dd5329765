#pragma once

// Sums over the inputs of a matrix: squares of its columns, and products of all pairs of them.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "guided/calibration.h"

namespace imago::precision {

/// Runs on the pool; the sums do not depend on the number of threads.
class InputSums {
 public:
  InputSums(std::size_t columns, bool products);

  /// `x`, [rows][columns].
  void add(std::span<const float> x, std::size_t rows);
  /// Whether all squares seen so far are finite, as float32 too.
  bool is_finite() const noexcept;

  /// Means of what was seen.
  guided::InputStatistics statistics() const;
  /// Adds what was seen to earlier means, row by row of equal weight. Throws UsageError if these are of other columns
  /// or have no products where these sums do.
  void add_to(guided::InputStatistics& earlier) const;

 private:
  void add_products(std::span<const float> x, std::size_t rows);

  std::size_t columns_;
  std::uint64_t rows_ = 0;
  std::vector<double> squares_;
  std::vector<float> products_;  ///< [columns][columns], upper triangle of panels; empty: not asked for
  std::vector<float> panels_;    ///< a batch of inputs, columns cut into panels
};

}  // namespace imago::precision
