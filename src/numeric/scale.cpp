#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
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

/// `scale`, or the largest below it under which no weight decodes beyond float32. That concerns weights near the end
/// of float32 only: max / Q may round up, and saturated weights can take a code beyond Q (-128 of int8).
float without_overflow(DType dtype, float scale, std::span<const float> weights) noexcept {
  constexpr float kMost = std::numeric_limits<float>::max();
  if (scale <= kMost / 4 / std::max(info(dtype).scale_divisor, 1.0f)) return scale;  // no code reaches 4 Q
  float low = 0, high = 0;
  for (const float w : weights) {
    low = w < low ? w : low;  // false for NaN
    high = w > high ? w : high;
  }
  // Codes grow with weights, so the extremes speak for all. A slightly smaller scale leaves their codes as they are.
  for (const float w : {low, high}) {
    const float code = visit(dtype, [&]<class T>(std::type_identity<T>) {
      return std::fabs(dequantize_value<T>(quantize_value<T>(w, scale), 1.0f));
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

  double operator()(float scale) const {
    const DTypeInfo& type = info(dtype);
    const bool whole = type.bits <= 8 && type.kind != NumberKind::narrow_float && type.kind != NumberKind::binary;
    return visit(dtype, [&]<class T>(std::type_identity<T>) {
      double sum = 0;
      std::array<float, 64> decoded;
      for (std::size_t first = 0; first < weights.size(); first += decoded.size()) {
        const std::span<const float> part = weights.subspan(first, std::min(decoded.size(), weights.size() - first));
        whole ? decode_whole<T>(part, scale, decoded) : decode_any<T>(part, scale, decoded);
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
  static void decode_any(std::span<const float> part, float scale, std::span<float> out) {
    for (std::size_t i = 0; i < part.size(); ++i)
      out[i] = dequantize_value<T>(quantize_value<T>(part[i], scale), scale);
  }

  /// The same for integers of at most 8 bits, in a loop that compilers vectorize: a search spends all its time here.
  template <class T>
  static void decode_whole(std::span<const float> part, float scale, std::span<float> out) {
    constexpr float kMost = std::numeric_limits<float>::max();
    const float low = dequantize_value<T>(quantize_value<T>(-kMost, 1.0f), 1.0f);
    const float high = dequantize_value<T>(quantize_value<T>(kMost, 1.0f), 1.0f);
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
  if (!(percentile > 0 && percentile <= 1)) {
    throw UsageError(fmt::format("the percentile must be above 0 and at most 1, not {}", percentile));
  }
  const DTypeInfo& type = info(dtype);
  if (type.kind == NumberKind::wide_float || type.kind == NumberKind::binary || ends_beyond_divisor(type)) {
    return derive_scale(dtype, weights);
  }
  std::vector<float> magnitudes;
  magnitudes.reserve(weights.size());
  for (const float w : weights) {
    if (!std::isnan(w)) magnitudes.push_back(magnitude(w, type.kind));
  }
  if (magnitudes.empty()) return 1.0f;
  const double position = std::ceil(percentile * static_cast<double>(magnitudes.size()));
  const auto nth = magnitudes.begin() + std::max<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(position), 1) - 1;
  std::nth_element(magnitudes.begin(), nth, magnitudes.end());
  return without_overflow(dtype, usable(*nth / type.scale_divisor), weights);
}

float derive_mse_scale(DType dtype, std::span<const float> weights, std::span<const float> importance) {
  if (!importance.empty() && importance.size() != weights.size()) {
    throw ShapeError(fmt::format("{} importance factors for {} weights", importance.size(), weights.size()));
  }
  const float widest = derive_scale(dtype, weights);
  if (!is_scaled(dtype) || ends_beyond_divisor(info(dtype))) return widest;
  // A search over a large tensor costs no more than over 64 Ki weights: the place of the least error is a property of
  // their distribution, which a sample of that size shows to about one part in a thousand.
  constexpr std::size_t kEnough = 65536;
  const std::size_t stride = (weights.size() + kEnough - 1) / kEnough;
  const WeightedError error{dtype, weights, importance};
  if (stride <= 1) return search_scale(error, widest);
  const std::vector<float> sample = every_nth(weights, stride), factors = every_nth(importance, stride);
  const float found = search_scale(WeightedError{dtype, sample, factors}, widest);
  return error(found) < error(widest) ? found : widest;
}

}  // namespace imago
