#pragma once

// Coordinate descent after all columns are rounded: each code, scale and offset in turn takes the value that lowers the
// error of the outputs, e (H + damping) eᵀ, with all others fixed. The error never rises.

#include <cstddef>
#include <span>
#include <vector>

#include "guided/levels.h"
#include "guided/rounding_grid.h"

namespace imago::guided {

/// The columns of a row that share one scale.
struct ColumnGroup {
  std::size_t count = 0;
  const float* weights = nullptr;
  std::span<const float> errors;    ///< weights minus their current values
  const float* slopes = nullptr;    ///< e · H
  const float* products = nullptr;  ///< row i of H of these columns is at products + i · stride
  std::size_t stride = 0;
  float damping = 0;  ///< added to the diagonal of H
};

/// Four scales with their offsets.
struct Trial {
  Four scales, offsets;
};

/// Tries other scales for a group, each with codes chosen for it: once codes fit a scale, neither improves alone. Not
/// thread-safe.
class GroupSearch {
  using Lanes = LevelLanes::Lanes;

 public:
  explicit GroupSearch(const Levels& levels) : levels_(levels) {}

  /// Starts over. What the group points to must outlive the last attempt.
  void begin(const ColumnGroup& group);
  /// Rounds the columns in order with each scale and its offset, compensating as it goes, and keeps the best since
  /// begin(). REQUIRES: no scale is 0.
  template <std::size_t kTrials>
  void attempt(const Trial (&trials)[kTrials]);

  /// Whether an attempt lowered the error; the accessors below describe the best one.
  bool found() const noexcept { return change_ < 0; }
  float scale() const noexcept { return scale_; }
  float offset() const noexcept { return offset_; }
  /// The level of each column.
  std::span<const float> values() const noexcept { return values_; }

 private:
  LevelLanes levels_;
  ColumnGroup group_;
  std::vector<Lanes> slopes_, tried_;  ///< of each column, in each trial
  float change_ = 0, scale_ = 0, offset_ = 0;
  std::vector<float> values_;
};

class Descent {
  using Part = RoundingGrid::Part;

 public:
  explicit Descent(Strip& strip) : strip_(strip), search_(strip.source.levels) {}

  /// Goes through all panels once: each code, pairs of codes, then the scale and offset of each group, first with fixed
  /// codes and then with new ones.
  void sweep();

 private:
  /// One row of a panel.
  struct Row {
    std::size_t row, first, width;
    float* slopes;  ///< e · H of these columns
  };

  void sweep_row(const Row& at);
  void improve_code(const Row& at, std::size_t i);
  void improve_pairs(const Row& at);
  void find_steps(const Row& at);
  void take_step(const Row& at, std::size_t i, int side);
  /// The scale or offset of a group, with fixed codes.
  void improve(const Row& at, std::size_t i, Part part);
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
      costs_[2];  ///< per column: the step to the next level up and down, and its cost
  GroupSearch search_;
  std::vector<float> group_errors_;
};

}  // namespace imago::guided
