#pragma once

// Measures of models: distance of weights, size of layers, and which of many (size, cost) points are best.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "imago/layer.h"
#include "imago/precision.h"

namespace imago::precision {

/// The distance of two arrays that are read piece by piece. Sums in double, in an order that does not depend on
/// threads.
class DistortionSums {
 public:
  /// REQUIRES: equal sizes. Runs on the pool.
  void add(std::span<const float> reference, std::span<const float> other);
  DistortionSums& operator+=(const DistortionSums& more) noexcept;

  std::size_t count() const noexcept { return count_; }
  /// Pairs with a NaN or infinite value. The figures below leave them out.
  std::size_t not_finite() const noexcept { return not_finite_; }

  /// 1 if both arrays are zero, 0 if one is; none without values.
  std::optional<double> cosine() const noexcept;
  std::optional<double> rmse() const noexcept;
  /// rmse / root mean square of the reference; 0 if both are zero, none if only the reference is.
  std::optional<double> relative_rmse() const noexcept;

 private:
  std::size_t count_ = 0, not_finite_ = 0;
  double reference_ = 0, other_ = 0;     // sums of squares
  double product_ = 0, difference_ = 0;  // sums of products and of squared differences
};

/// Bytes of codes and scales of a layer in a file, in its own scheme or in another one, without inner layers.
std::uint64_t layer_bytes(const Layer& layer);
std::uint64_t layer_bytes(const Layer& layer, const Scheme& scheme);

/// `count` examples of `data` from `first` on.
Tensor<float> examples(const Tensor<float>& data, std::size_t first, std::size_t count);

/// Whether each row has one 1 and zeros.
bool is_one_hot(const Tensor<float>& targets);

/// The type of most weights, given the weights of each type; empty if there are none.
std::string main_type(const std::map<std::string, std::uint64_t>& weights);

/// Sets on_front of the points that no other one beats: none is as small and as good, and better at one of both. Points
/// whose cost is not finite are never on it.
void mark_front(std::span<SweepPoint> points);

}  // namespace imago::precision
