#pragma once

// Other scales for a group of columns, each tried with codes that suit it. Once codes were chosen for a scale, neither
// gets better alone: together they can.

#include <cstddef>
#include <span>
#include <vector>

#include "guided/level_lanes.h"

namespace imago::guided {

/// The columns of one scale in a row, with all others as they are.
struct ColumnGroup {
  std::size_t count = 0;
  const float* weights = nullptr;
  std::span<const float> errors;    ///< weights less their values now
  const float* slopes = nullptr;    ///< e · H
  const float* products = nullptr;  ///< row i of H of these columns is at products + i · stride
  std::size_t stride = 0;
  float damping = 0;  ///< that belongs to the diagonal of H
};

/// Four scales with their offsets.
struct Trial {
  Four scales, offsets;
};

/// Not thread-safe.
class GroupSearch {
  using Lanes = LevelLanes::Lanes;

 public:
  explicit GroupSearch(const Levels& levels) : levels_(levels) {}

  /// Forgets what was found. What the group points to must stay until the last attempt.
  void begin(const ColumnGroup& group);
  /// Rounds the columns in order with each scale and its offset, from where the errors of those before have moved them,
  /// and keeps the best since begin(). REQUIRES: no scale is 0.
  template <std::size_t kTrials>
  void attempt(const Trial (&trials)[kTrials]);

  /// Whether something lowers the error; the others say what.
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

}  // namespace imago::guided
