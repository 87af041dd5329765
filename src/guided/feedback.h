#pragma once

// How the error of a column is best made up for by the columns behind it.
//
// The outputs of a row w rounded to v differ by e = w - v, and their mean squared error is e H eᵀ with the products H
// of the inputs. With H = (I + U) D (I + U)ᵀ, U strictly upper triangular and D diagonal, that is Σ D[k] (e (I +
// U))[k]²: if column k is rounded from w[k] + Σ_{i<k} e[i] U[i][k], what remains in each term is a rounding error
// alone.

#include <cstddef>
#include <span>
#include <vector>

#include "guided/calibration.h"

namespace imago::guided {

class Feedback {
 public:
  /// Columns of a panel: those that are rounded one after the other before the next product of matrices.
  static constexpr std::size_t kPanel = 256;

  /// Of the products of `statistics`. They are damped: a share of the mean square is added to each column, more if it
  /// takes more to make them positive definite. Throws UsageError without products or with ones that are not finite.
  explicit Feedback(const InputStatistics& statistics);

  /// What was added to the square of each column.
  float damping() const noexcept { return damping_; }
  std::size_t columns() const noexcept { return pivots_.size(); }
  /// D: what is left of the weight of a column's error once the columns behind it have done what they can.
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

}  // namespace imago::guided
