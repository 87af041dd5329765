#include "precision/distortion_sums.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <vector>

#include "base/parallel.h"

namespace imago::precision {

namespace {

// Pairs that are summed on their own: enough work for a thread, and few enough sums to keep.
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

}  // namespace imago::precision
