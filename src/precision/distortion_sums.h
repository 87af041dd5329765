#pragma once

// The distance of two arrays that are seen piece by piece.

#include <cstddef>
#include <optional>
#include <span>

namespace imago::precision {

/// Sums over pairs of values, in double and in an order that does not depend on threads.
class DistortionSums {
 public:
  /// REQUIRES: as many values in both. Runs on the pool.
  void add(std::span<const float> reference, std::span<const float> other);
  DistortionSums& operator+=(const DistortionSums& more) noexcept;

  std::size_t count() const noexcept { return count_; }
  /// Values of the reference or the other that are NaN or infinite. The figures below leave out their pairs.
  std::size_t not_finite() const noexcept { return not_finite_; }

  /// 1 if both are zero, 0 if one is; none without values.
  std::optional<double> cosine() const noexcept;
  std::optional<double> rmse() const noexcept;
  /// rmse / root mean square of the reference; 0 if both are zero, none if only the reference is.
  std::optional<double> relative_rmse() const noexcept;

 private:
  std::size_t count_ = 0, not_finite_ = 0;
  double reference_ = 0, other_ = 0, product_ = 0, difference_ = 0;  // sums of squares; of products
};

}  // namespace imago::precision
