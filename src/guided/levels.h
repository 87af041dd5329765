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

  std::size_t size() const noexcept { return sorted_.size(); }
  float low() const noexcept { return sorted_.front(); }
  float high() const noexcept { return sorted_.back(); }
  float value(std::size_t place) const noexcept { return sorted_[place]; }
  std::size_t code(std::size_t place) const noexcept { return codes_[place]; }

  /// The place of the nearest value, in ascending order; the even one of two whole numbers that are equally near.
  std::size_t nearest(float t) const noexcept {
    if (!consecutive_) {
      return static_cast<std::size_t>(std::ranges::lower_bound(midpoints_, t) - midpoints_.begin());
    }
    // Adding 1.5 · 2^23 leaves no bits for the fraction.
    constexpr float kMagic = 12582912.0f;
    const float limited = t < low() ? low() : t > high() ? high() : t;
    return static_cast<std::size_t>(static_cast<int>((limited + kMagic) - kMagic - low()));
  }

 private:
  std::vector<float> sorted_, midpoints_;
  std::vector<std::size_t> codes_;  ///< of the sorted values
  bool consecutive_ = false;        ///< whole numbers without a gap
};

}  // namespace imago::guided
