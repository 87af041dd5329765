#pragma once

// The values of the codes of a type before scale and offset, and how to find the one nearest to a number.

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "imago/format.h"

namespace imago::guided {

class Levels {
 public:
  /// Code i has the value values[i]; values may repeat.
  explicit Levels(std::span<const float> values);
  /// The levels of a dtype with scales and at most 8 bits. Codes are indices into the ascending values.
  static Levels of(DType dtype);

  /// Adding 1.5 · 2^23 leaves no bits for the fraction.
  static constexpr float kMagic = 12582912.0f;
  bool consecutive() const noexcept { return consecutive_; }
  /// Halfway between this value and the next one.
  float midpoint(std::size_t place) const noexcept { return midpoints_[place]; }

  std::size_t size() const noexcept { return sorted_.size(); }
  float low() const noexcept { return sorted_.front(); }
  float high() const noexcept { return sorted_.back(); }
  float value(std::size_t place) const noexcept { return sorted_[place]; }
  std::size_t code(std::size_t place) const noexcept { return codes_[place]; }

  /// The index of the nearest value, in ascending order; of two equally near integers, the even one.
  std::size_t nearest(float t) const noexcept {
    if (!consecutive_) return count_below(t);
    const float limited = t < low() ? low() : t > high() ? high() : t;
    return static_cast<std::size_t>(static_cast<int>((limited + kMagic) - kMagic - low()));
  }

 private:
  std::size_t count_below(float t) const noexcept {
    // A few independent comparisons are faster than a binary search with unpredictable branches.
    constexpr std::size_t kFew = 16;
    if (midpoints_.size() > kFew) {
      return static_cast<std::size_t>(std::ranges::lower_bound(midpoints_, t) - midpoints_.begin());
    }
    int below = 0;
    for (const float midpoint : midpoints_) below += midpoint < t ? 1 : 0;
    return static_cast<std::size_t>(below);
  }

  std::vector<float> sorted_, midpoints_;
  std::vector<std::size_t> codes_;  ///< of the sorted values
  bool consecutive_ = false;        ///< integers without a gap
};

using Four = std::array<float, 4>;

/// Levels::nearest for four numbers at once, those of four scales that are tried side by side.
class LevelLanes {
 public:
  using Lanes = float __attribute__((vector_size(16)));

  explicit LevelLanes(const Levels& levels)
      : levels_(levels), low_(levels.low() + Lanes{}), high_(levels.high() + Lanes{}) {}

  static Lanes load(const Four& values) noexcept { return Lanes{values[0], values[1], values[2], values[3]}; }

  /// The value of Levels::nearest in each lane.
  Lanes nearest_values(Lanes t) const noexcept {
    if (!levels_.consecutive()) return nearest_of_uneven(t);
    const Lanes above = t < low_ ? low_ : t, limited = above > high_ ? high_ : above;
    return (limited + Levels::kMagic) - Levels::kMagic;
  }

 private:
  Lanes nearest_of_uneven(Lanes t) const noexcept;

  const Levels& levels_;
  Lanes low_, high_;
};

}  // namespace imago::guided
