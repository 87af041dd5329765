#include "precision/measures.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "quant/packed_array.h"

namespace imago::precision {

namespace {

// Pairs per partial sum: enough work for a thread, and few enough sums to keep.
constexpr std::size_t kSumPairs = std::size_t{1} << 14;

}  // namespace

void DistortionSums::add(std::span<const float> reference, std::span<const float> other) {
  assert(reference.size() == other.size());
  std::vector<DistortionSums> parts((reference.size() + kSumPairs - 1) / kSumPairs);
  parallel_for_dynamic(parts.size(), 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t part = begin; part < end; ++part) {
      DistortionSums sums;
      const std::size_t last = std::min(reference.size(), (part + 1) * kSumPairs);
      for (std::size_t i = part * kSumPairs; i < last; ++i) {
        const double a = static_cast<double>(reference[i]), b = static_cast<double>(other[i]);
        if (!std::isfinite(a) || !std::isfinite(b)) {
          ++sums.not_finite_;
          continue;
        }
        sums.reference_ += a * a;
        sums.other_ += b * b;
        sums.product_ += a * b;
        sums.difference_ += (a - b) * (a - b);
      }
      sums.count_ = last - part * kSumPairs - sums.not_finite_;
      parts[part] = sums;
    }
  });
  for (const DistortionSums& part : parts) *this += part;
}

DistortionSums& DistortionSums::operator+=(const DistortionSums& more) noexcept {
  count_ += more.count_;
  not_finite_ += more.not_finite_;
  reference_ += more.reference_;
  other_ += more.other_;
  product_ += more.product_;
  difference_ += more.difference_;
  return *this;
}

std::optional<double> DistortionSums::cosine() const noexcept {
  if (count_ == 0) return std::nullopt;
  if (reference_ == 0 || other_ == 0) return reference_ == other_ ? 1.0 : 0.0;
  if (difference_ == 0) return 1.0;  // not 1 - 1e-16
  return std::clamp(product_ / (std::sqrt(reference_) * std::sqrt(other_)), -1.0, 1.0);
}

std::optional<double> DistortionSums::rmse() const noexcept {
  if (count_ == 0) return std::nullopt;
  return std::sqrt(difference_ / static_cast<double>(count_));
}

std::optional<double> DistortionSums::relative_rmse() const noexcept {
  if (count_ == 0) return std::nullopt;
  if (difference_ == 0) return 0.0;
  if (reference_ == 0) return std::nullopt;
  return std::sqrt(difference_ / reference_);
}

std::uint64_t layer_bytes(const Layer& layer) { return layer.weights ? layer_bytes(layer, layer.config.scheme()) : 0; }

std::uint64_t layer_bytes(const Layer& layer, const Scheme& scheme) {
  const std::size_t scales = scale_layout(scheme, layer.weights->shape()).count;
  const std::shared_ptr<const Version> version = layer.weights->find(scheme);
  const std::size_t zero_points = version ? version->zero_points().size() : has_zero_points(scheme) ? scales : 0;
  return stored_bytes(scheme, layer.weights->shape()) + zero_points * sizeof(float);
}

Tensor<float> examples(const Tensor<float>& data, std::size_t first, std::size_t count) {
  std::vector<std::size_t> extents(data.shape().extents().begin(), data.shape().extents().end());
  const std::size_t values = extents[0] == 0 ? 0 : data.size() / extents[0];
  extents[0] = count;
  Tensor<float> some{Shape(extents)};
  std::ranges::copy(data.values().subspan(first * values, count * values), some.values().begin());
  return some;
}

bool is_one_hot(const Tensor<float>& targets) {
  const std::size_t cols = targets.shape().last();
  if (cols < 2) return false;
  for (std::size_t row = 0; row < targets.size(); row += cols) {
    const std::span<const float> values = targets.values().subspan(row, cols);
    if (std::ranges::count(values, 1.0f) != 1 || std::ranges::count(values, 0.0f) + 1 != std::ssize(values)) {
      return false;
    }
  }
  return targets.size() != 0;
}

std::string main_type(const std::map<std::string, std::uint64_t>& weights) {
  const auto most = std::ranges::max_element(weights, {}, [](const auto& entry) { return entry.second; });
  return most == weights.end() ? "" : most->first;
}

void mark_front(std::span<SweepPoint> points) {
  const auto beats = [](const SweepPoint& one, const SweepPoint& other) {
    return one.bytes <= other.bytes && one.cost() <= other.cost() &&
           (one.bytes < other.bytes || one.cost() < other.cost());
  };
  for (SweepPoint& point : points) {
    point.on_front = std::isfinite(point.cost()) &&
                     std::ranges::none_of(points, [&](const SweepPoint& other) { return beats(other, point); });
  }
}

}  // namespace imago::precision
