#pragma once

// Runs a text through a model and collects statistics of the inputs of its matrices.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "guided/calibration.h"
#include "imago/lm.h"
#include "imago/precision.h"

namespace imago::precision {

/// Sums over the inputs of a matrix: squares of columns, and products of all pairs of columns. Runs on the pool; the
/// sums do not depend on the number of threads.
class InputSums {
 public:
  InputSums(std::size_t columns, bool products);

  /// Adds inputs, [rows][columns].
  void add(std::span<const float> x, std::size_t rows);
  /// Whether all sums of squares so far are finite, also in float32.
  bool is_finite() const noexcept;

  /// The means.
  guided::InputStatistics statistics() const;
  /// Merges these sums into earlier means, every input with equal weight. Throws UsageError if those have other
  /// columns, or no products while these have.
  void add_to(guided::InputStatistics& earlier) const;

 private:
  void add_products(std::span<const float> x, std::size_t rows);

  std::size_t columns_;
  std::uint64_t rows_ = 0;
  std::vector<double> squares_;
  std::vector<float> products_;  ///< [columns][columns], upper triangle of panels; empty: not requested
  std::vector<float> panels_;    ///< a batch of inputs, in panels of columns
};

/// Adds the windows of `ids`, without an incomplete one at the end, to `calibration`, which may hold earlier ones.
/// Throws UsageError for ids that do not fill a window, FormatError if activations are not finite, naming the matrix.
void collect(const LanguageModel& model, std::span<const TokenId> ids, const CalibrateOptions& options,
             guided::Calibration& calibration);

}  // namespace imago::precision
