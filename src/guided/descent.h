#pragma once

// What is left to gain once all columns are rounded: codes and scales are looked at again with all others fixed, those
// of later columns too, and take what lowers the error of the outputs, e (H + damping) eᵀ. It never rises.

#include <cstddef>
#include <vector>

#include "guided/group_search.h"
#include "guided/strip.h"

namespace imago::guided {

class Descent {
 public:
  explicit Descent(Strip& strip) : strip_(strip), search_(strip.source.levels) {}

  /// All panels once: each code, pairs of codes, then the scale and offset of each group, first with its codes as they
  /// are and then with others.
  void sweep();

 private:
  /// One row in the columns of a panel.
  struct Row {
    std::size_t row, first, width;
    float* slopes;  ///< e · H of these columns
  };

  void sweep_row(const Row& at);
  void improve_code(const Row& at, std::size_t i);
  void improve_pairs(const Row& at);
  void find_steps(const Row& at);
  void take_step(const Row& at, std::size_t i, int side);
  void improve_scale(const Row& at, std::size_t i);
  void improve_offset(const Row& at, std::size_t i);
  void search_scales(const Row& at, std::size_t i);
  float best_step(const Row& at, std::size_t i);
  void move_group(const Row& at, std::size_t i, float step);
  void change_error(const Row& at, std::size_t i, float change);

  float& error(const Row& at, std::size_t i) { return strip_.errors[(at.first + i) * strip_.rows + at.row]; }
  float error(const Row& at, std::size_t i) const { return strip_.errors[(at.first + i) * strip_.rows + at.row]; }
  float damping() const noexcept { return strip_.source.feedback.damping(); }
  /// Row `i` of H, from the first column of the panel on.
  const float* products(const Row& at, std::size_t i) const noexcept {
    return strip_.source.inputs.products.data() + (at.first + i) * strip_.cols + at.first;
  }
  float slope(const Row& at, std::size_t i) const { return at.slopes[i] + damping() * error(at, i); }
  float curvature(const Row& at, std::size_t i) const { return products(at, i)[i] + damping(); }

  Strip& strip_;
  std::vector<float> slopes_, direction_, moved_;
  std::vector<float> steps_[2],
      costs_[2];  ///< of each column: the value's way to the next level up, and down; what it costs
  GroupSearch search_;
  std::vector<float> group_errors_;
};

}  // namespace imago::guided
