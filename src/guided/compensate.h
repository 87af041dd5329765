#pragma once

// Error-compensating rounding (GPTQ): columns are rounded in order, each after adding the weighted errors of the
// columns before it. The scales of a group are chosen when its turn comes, from the weights as they are then. Descent
// (descent.h) then improves codes and scales one by one, which can only lower the error.
//
// The outputs of a row w rounded to v differ by e = w - v, and their mean squared error is e H eᵀ with the products H
// of the inputs. With H = (I + U) D (I + U)ᵀ, U strictly upper triangular and D diagonal, that is Σ D[k] (e (I +
// U))[k]²: if column k is rounded from w[k] + Σ_{i<k} e[i] U[i][k], each term is a single rounding error.

#include <cstddef>
#include <span>
#include <vector>

#include "guided/calibration.h"
#include "guided/encode_matrix.h"
#include "imago/weights.h"

namespace imago::guided {

/// U and D of the products of one matrix's inputs.
class Feedback {
 public:
  /// Columns rounded between two matrix products.
  static constexpr std::size_t kPanel = 256;

  /// Factorizes the products of `statistics` after damping: a share of the mean square is added to the diagonal, more
  /// if they are not positive definite otherwise. Throws UsageError if there are no products or they are not finite.
  explicit Feedback(const InputStatistics& statistics);

  /// What was added to the diagonal.
  float damping() const noexcept { return damping_; }
  std::size_t columns() const noexcept { return pivots_.size(); }
  /// D: the cost of a column's error once the later columns have compensated for it.
  std::span<const float> pivots() const noexcept { return pivots_; }
  /// U of the columns of panel p, [rows][width], row by row down to the last column of the panel; 0 on and below the
  /// diagonal.
  std::span<const float> panel(std::size_t p) const noexcept { return panels_[p]; }
  std::size_t panel_width(std::size_t p) const noexcept;

 private:
  float damping_ = 0;
  std::vector<float> pivots_;
  std::vector<std::vector<float>> panels_;
};

/// Whether the codes of a type can be chosen one by one: all block formats but tq1_0, and dtypes with scales and at
/// most 8 bits.
bool can_compensate(Format format);

/// REQUIRES: a checked scheme that can be compensated; weights are [rows][feedback.columns()]; the feedback is that of
/// the inputs. Runs on the pool; the bytes do not depend on the number of threads.
EncodedMatrix encode_compensated(std::span<const float> weights, std::size_t rows, const Scheme& scheme,
                                 const InputStatistics& inputs, const Feedback& feedback);

}  // namespace imago::guided
