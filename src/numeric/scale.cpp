#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "imago/error.h"
#include "imago/numeric.h"

namespace imago {

namespace {

/// A scale must be usable: anything zero or not finite counts as 1 (spec §3.2).
float usable(float scale) noexcept { return scale > 0 && std::isfinite(scale) ? scale : 1.0f; }

/// The magnitude that a type must reach: unsigned types see only the positive side. NaN gives a negative number.
float magnitude(float w, NumberKind kind) noexcept {
  if (std::isnan(w)) return -1;
  return kind == NumberKind::unsigned_integer ? std::max(w, 0.0f) : std::fabs(w);
}

struct Range {
  float low = 0, high = 0;  // of the weights and 0
};

Range range_of(std::span<const float> weights) noexcept {
  Range range;
  for (const float w : weights) {
    range.low = w < range.low ? w : range.low;  // false for NaN
    range.high = w > range.high ? w : range.high;
  }
  return range;
}

/// `scale`, or the largest below it under which no weight decodes beyond float32. That concerns weights near the end
/// of float32 only: max / Q may round up, and saturated weights can take a code beyond Q (-128 of int8).
float without_overflow(DType dtype, float scale, std::span<const float> weights, float zero_point = 0) noexcept {
  constexpr float kMost = std::numeric_limits<float>::max();
  if (scale <= kMost / 4 / std::max(info(dtype).scale_divisor, 1.0f)) return scale;  // no code reaches 4 Q
  const auto [low, high] = range_of(weights);
  // Codes grow with weights, so the extremes speak for all. A slightly smaller scale leaves their codes as they are.
  for (const float w : {low, high}) {
    const float code = visit(dtype, [&]<class T>(std::type_identity<T>) {
      return std::fabs(dequantize_value<T>(quantize_value<T>(w, scale, zero_point), 1.0f, zero_point));
    });
    if (std::isfinite(code * scale) || !std::isfinite(code)) continue;
    scale = kMost / code;
    while (std::isinf(code * scale)) scale = std::nextafter(scale, 0.0f);
  }
  return scale;
}

float largest_magnitude(NumberKind kind, std::span<const float> weights) noexcept {
  float largest = 0;
  for (const float w : weights) largest = std::max(largest, magnitude(w, kind));
  return largest;
}

/// Integers of 32 and 64 bits end far beyond Q = 2^20. A scale below that of the maximum would not saturate anything
/// but give codes beyond 2^20, which the float arithmetic of a round trip cannot hold (spec §3.2 [D10]).
bool ends_beyond_divisor(const DTypeInfo& type) noexcept { return type.scale_divisor != 0 && type.bits >= 32; }

struct WeightedError {
  DType dtype;
  std::span<const float> weights;
  std::span<const float> importance;
  float zero_point = 0;

  double operator()(float scale) const {
    const DTypeInfo& type = info(dtype);
    const bool whole = type.bits <= 8 && type.kind != NumberKind::narrow_float && type.kind != NumberKind::binary;
    return visit(dtype, [&]<class T>(std::type_identity<T>) {
      double sum = 0;
      std::array<float, 64> decoded;
      for (std::size_t first = 0; first < weights.size(); first += decoded.size()) {
        const std::span<const float> part = weights.subspan(first, std::min(decoded.size(), weights.size() - first));
        whole ? decode_whole<T>(part, scale, zero_point, decoded) : decode_any<T>(part, scale, zero_point, decoded);
        for (std::size_t i = 0; i < part.size(); ++i) {
          if (!std::isfinite(part[i])) continue;
          const double e = static_cast<double>(part[i]) - static_cast<double>(decoded[i]);
          sum += e * e * (importance.empty() ? 1.0 : static_cast<double>(importance[first + i]));
        }
      }
      return sum;
    });
  }

 private:
  template <class T>
  static void decode_any(std::span<const float> part, float scale, float zero_point, std::span<float> out) {
    for (std::size_t i = 0; i < part.size(); ++i)
      out[i] = dequantize_value<T>(quantize_value<T>(part[i], scale, zero_point), scale, zero_point);
  }

  /// The same for integers of at most 8 bits, in a loop that compilers vectorize: a search spends all its time here.
  template <class T>
  static void decode_whole(std::span<const float> part, float scale, float zero_point, std::span<float> out) {
    constexpr float kMost = std::numeric_limits<float>::max();
    const auto limit = [&](float w) {
      return dequantize_value<T>(quantize_value<T>(w, 1.0f, zero_point), 1.0f, zero_point);
    };
    const float low = limit(-kMost), high = limit(kMost);
    for (std::size_t i = 0; i < part.size(); ++i) {
      const float t = part[i] / scale;
      const float held = t > low ? (t < high ? t : high) : low;  // NaN, which does not count, becomes low
      out[i] = static_cast<float>(static_cast<int>(held + (held < 0 ? -0.5f : 0.5f))) * scale;
    }
  }
};

std::vector<float> every_nth(std::span<const float> all, std::size_t n) {
  std::vector<float> chosen;
  for (std::size_t i = 0; i < all.size(); i += n) chosen.push_back(all[i]);
  return chosen;
}

/// The error over the scale is wavy, with one broad valley: a geometric grid finds the valley, two finer ones its
/// floor. Below 1/16 of the absmax scale nearly every weight saturates; int2 gains a little above it (its -2 goes
/// unused at 1).
float search_scale(const WeightedError& error, float widest) {
  float best = widest;
  double least = error(widest);
  const auto try_scale = [&](float scale) {
    if (!(scale > 0) || !std::isfinite(scale)) return;
    const double e = error(scale);
    if (e < least) {
      least = e;
      best = scale;
    }
  };
  for (int i = -4; i <= 16; ++i) try_scale(widest * std::exp2(-static_cast<float>(i) / 4));
  for (const float step : {1.0f / 16, 1.0f / 64}) {
    const float centre = best;
    for (int i = -4; i <= 4; ++i) try_scale(centre * std::exp2(step * static_cast<float>(i)));
  }
  return best;
}

/// What the search for the least error looks at: no more than 64 Ki weights. Its place is a property of their
/// distribution, which a sample of that size shows to about one part in a thousand.
class SearchedWeights {
 public:
  SearchedWeights(DType dtype, std::span<const float> weights, std::span<const float> importance)
      : all_{dtype, weights, importance}, searched_(all_) {
    constexpr std::size_t kEnough = 65536;
    const std::size_t stride = (weights.size() + kEnough - 1) / kEnough;
    if (stride <= 1) return;
    sample_ = every_nth(weights, stride);
    factors_ = every_nth(importance, stride);
    searched_.weights = sample_;
    searched_.importance = factors_;
  }
  SearchedWeights(const SearchedWeights&) = delete;
  SearchedWeights& operator=(const SearchedWeights&) = delete;

  struct Found {
    AsymmetricScale scale;
    double error;
  };
  Found search(AsymmetricScale widest) const {
    WeightedError error = searched_;
    error.zero_point = widest.zero_point;
    widest.scale = search_scale(error, widest.scale);
    return {widest, error(widest.scale)};
  }

  /// `found`, unless `widest` is better for all weights.
  AsymmetricScale better(AsymmetricScale found, AsymmetricScale widest) const {
    if (sample_.empty() && found.zero_point == widest.zero_point) return found;
    const auto error_of = [&](AsymmetricScale scale) {
      WeightedError error = all_;
      error.zero_point = scale.zero_point;
      return error(scale.scale);
    };
    return error_of(found) < error_of(widest) ? found : widest;
  }

 private:
  WeightedError all_, searched_;
  std::vector<float> sample_, factors_;
};

void check_percentile(double percentile) {
  if (percentile > 0 && percentile <= 1) return;
  throw UsageError(fmt::format("the percentile must be above 0 and at most 1, not {}", percentile));
}

void check_importance(std::span<const float> weights, std::span<const float> importance) {
  if (importance.empty() || importance.size() == weights.size()) return;
  throw ShapeError(fmt::format("{} importance factors for {} weights", importance.size(), weights.size()));
}

/// The `percentile`-th largest magnitude; nothing if all weights are NaN.
std::optional<float> percentile_magnitude(NumberKind kind, std::span<const float> weights, double percentile) {
  std::vector<float> magnitudes;
  magnitudes.reserve(weights.size());
  for (const float w : weights) {
    if (!std::isnan(w)) magnitudes.push_back(magnitude(w, kind));
  }
  if (magnitudes.empty()) return std::nullopt;
  const double position = std::ceil(percentile * static_cast<double>(magnitudes.size()));
  const auto nth = magnitudes.begin() + std::max<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(position), 1) - 1;
  std::nth_element(magnitudes.begin(), nth, magnitudes.end());
  return *nth;
}

/// Where 0 lies among the codes that span `range`, before it is rounded to one. In double: the range of float32 may
/// be wider than float32.
double place_of_zero(const DTypeInfo& type, const Range& range) noexcept {
  const double low = static_cast<double>(range.low), high = static_cast<double>(range.high);
  return -low / (high - low) * static_cast<double>(type.scale_divisor);
}

AsymmetricScale spanning(DType dtype, const Range& range, std::span<const float> weights) noexcept {
  const DTypeInfo& type = info(dtype);
  const double width = static_cast<double>(range.high) - static_cast<double>(range.low);
  const float scale = usable(static_cast<float>(width / static_cast<double>(type.scale_divisor)));
  const float zero_point = static_cast<float>(std::round(place_of_zero(type, range)));
  return {without_overflow(dtype, scale, weights, zero_point), zero_point};
}

/// Whether the weights need a zero point: an unsigned type, and some below 0. A range that is not finite has none.
bool needs_zero_point(Format format, const Range& range) noexcept {
  return format.has_scales() && info(format.dtype()).kind == NumberKind::unsigned_integer && range.low < 0 &&
         std::isfinite(range.low) && std::isfinite(range.high);
}

}  // namespace

float derive_scale(Format format, std::span<const float> weights) noexcept {
  if (!format.has_scales()) return 1.0f;
  const DType dtype = format.dtype();
  const DTypeInfo& type = info(dtype);
  if (type.kind == NumberKind::binary) return derive_absmean_scale(weights);
  return without_overflow(dtype, usable(largest_magnitude(type.kind, weights) / type.scale_divisor), weights);
}

float derive_absmean_scale(std::span<const float> weights) noexcept {
  double sum = 0;
  for (const float w : weights) {
    if (!std::isnan(w)) sum += std::fabs(static_cast<double>(w));
  }
  return usable(static_cast<float>(sum) / static_cast<float>(weights.size()));
}

float derive_percentile_scale(DType dtype, std::span<const float> weights, double percentile) {
  check_percentile(percentile);
  const DTypeInfo& type = info(dtype);
  if (type.kind == NumberKind::wide_float || type.kind == NumberKind::binary || ends_beyond_divisor(type)) {
    return derive_scale(dtype, weights);
  }
  const std::optional<float> largest = percentile_magnitude(type.kind, weights, percentile);
  return largest ? without_overflow(dtype, usable(*largest / type.scale_divisor), weights) : 1.0f;
}

float derive_mse_scale(DType dtype, std::span<const float> weights, std::span<const float> importance) {
  check_importance(weights, importance);
  const AsymmetricScale widest{derive_scale(dtype, weights), 0};
  if (!is_scaled(dtype) || ends_beyond_divisor(info(dtype))) return widest.scale;
  const SearchedWeights searched(dtype, weights, importance);
  return searched.better(searched.search(widest).scale, widest).scale;
}

AsymmetricScale derive_asymmetric_scale(Format format, std::span<const float> weights) noexcept {
  const Range range = range_of(weights);
  if (!needs_zero_point(format, range)) return {derive_scale(format, weights), 0};
  return spanning(format.dtype(), range, weights);
}

AsymmetricScale derive_asymmetric_percentile_scale(DType dtype, std::span<const float> weights, double percentile) {
  check_percentile(percentile);
  const Range range = range_of(weights);
  if (!needs_zero_point(dtype, range)) return {derive_percentile_scale(dtype, weights, percentile), 0};
  if (ends_beyond_divisor(info(dtype))) return spanning(dtype, range, weights);
  const float most = percentile_magnitude(NumberKind::signed_integer, weights, percentile).value();
  const Range limited{std::max(range.low, -most), std::min(range.high, most)};
  return limited.low < limited.high ? spanning(dtype, limited, weights) : spanning(dtype, range, weights);
}

AsymmetricScale derive_asymmetric_mse_scale(DType dtype, std::span<const float> weights,
                                            std::span<const float> importance) {
  const Range range = range_of(weights);
  if (!needs_zero_point(dtype, range)) return {derive_mse_scale(dtype, weights, importance), 0};
  check_importance(weights, importance);
  const DTypeInfo& type = info(dtype);
  const AsymmetricScale widest = spanning(dtype, range, weights);
  if (ends_beyond_divisor(type)) return widest;

  const SearchedWeights searched(dtype, weights, importance);
  const auto with_zero = [&](double zero_point) {
    return searched.search(
        {widest.scale, static_cast<float>(std::clamp(zero_point, 0.0, static_cast<double>(type.scale_divisor)))});
  };
  // A smaller scale leaves 0 in its place among the codes. That place is between two of them.
  const double place = place_of_zero(type, range);
  SearchedWeights::Found best = with_zero(std::floor(place));
  const SearchedWeights::Found above = with_zero(std::ceil(place));
  if (above.error < best.error) best = above;
  // With few codes it pays to give up some of the range on the side that has fewer weights.
  for (bool improves = type.bits <= 4; improves;) {
    improves = false;
    for (const double step : {-1.0, 1.0}) {
      const SearchedWeights::Found next = with_zero(static_cast<double>(best.scale.zero_point) + step);
      if (!(next.error < best.error)) continue;
      best = next;
      improves = true;
    }
  }
  return searched.better(best.scale, widest);
}

}  // namespace imago
