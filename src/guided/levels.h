#pragma once

// The values that codes of a type stand for, before scale and offset, and the one nearest to a number.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "imago/format.h"

namespace imago::guided {

class Levels {
 public:
  /// Code i stands for values[i]; values may come twice.
  explicit Levels(std::span<const float> values);
  /// Of a dtype with scales of at most 8 bits. Codes are then places in the ascending order of the values.
  static Levels of(DType dtype);
  static bool exist(DType dtype) noexcept;

  /// Adding 1.5 · 2^23 leaves no bits for the fraction.
  static constexpr float kMagic = 12582912.0f;
  bool consecutive() const noexcept { return consecutive_; }
  /// Between the value at this place and the next one.
  float midpoint(std::size_t place) const noexcept { return midpoints_[place]; }

  std::size_t size() const noexcept { return sorted_.size(); }
  float low() const noexcept { return sorted_.front(); }
  float high() const noexcept { return sorted_.back(); }
  float value(std::size_t place) const noexcept { return sorted_[place]; }
  std::size_t code(std::size_t place) const noexcept { return codes_[place]; }

  /// The place of the nearest value, in ascending order; the even one of two whole numbers that are equally near.
  std::size_t nearest(float t) const noexcept {
    if (!consecutive_) return count_below(t);
    const float limited = t < low() ? low() : t > high() ? high() : t;
    return static_cast<std::size_t>(static_cast<int>((limited + kMagic) - kMagic - low()));
  }

 private:
  std::size_t count_below(float t) const noexcept {
    // A few comparisons that nothing waits for are faster than four in order that cannot be foreseen.
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
  bool consecutive_ = false;        ///< whole numbers without a gap
};

}  // namespace imago::guided
