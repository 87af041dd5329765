#include "guided/scale_search.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "imago/error.h"
#include "imago/numeric.h"

namespace imago::guided {

namespace {

/// Sums run in so many lanes, in an order that the compiler can keep when it uses vectors.
constexpr std::size_t kLanes = 8;

struct Range {
  float low, high;
};

bool is_whole_number(const DTypeInfo& type) noexcept {
  return type.bits <= 8 && (type.kind == NumberKind::signed_integer || type.kind == NumberKind::unsigned_integer ||
                            type.kind == NumberKind::ternary);
}

Range range_of(const DTypeInfo& type) noexcept {
  if (type.kind == NumberKind::ternary) return {-1, 1};
  if (type.kind == NumberKind::unsigned_integer) return {0, static_cast<float>((1 << type.bits) - 1)};
  const float beyond = static_cast<float>(1 << (type.bits - 1));
  return {-beyond, beyond - 1};
}

/// Least squares for fixed codes: Σ w x q and Σ w q².
struct Fit {
  float xq = 0, qq = 0;
  float explained() const noexcept { return qq > 0 && xq > 0 ? xq * xq / qq : 0; }
};

/// REQUIRES: count is a multiple of kLanes.
Fit fit_codes(const float* x, const float* w, std::size_t count, Range range, float inverse) noexcept {
  float xq[kLanes] = {}, qq[kLanes] = {};
  for (std::size_t i = 0; i < count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      constexpr float kMagic = 12582912.0f;  // 1.5 · 2^23: adding it leaves no bits for the fraction
      float t = x[i + lane] * inverse;
      t = t < range.low ? range.low : t;
      t = t > range.high ? range.high : t;
      const float q = (t + kMagic) - kMagic;
      const float wq = w[i + lane] * q;
      xq[lane] += wq * x[i + lane];
      qq[lane] += wq * q;
    }
  }
  Fit fit;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    fit.xq += xq[lane];
    fit.qq += qq[lane];
  }
  return fit;
}

/// Code of the largest weight over that of the end of the range: from a little inside to where the few largest are
/// clipped. Types of one or two bits clip most.
constexpr float kInside = 0.85f;
float outside_of(Range range) noexcept { return range.high <= 3 ? 4.5f : range.high <= 15 ? 1.9f : 1.3f; }
constexpr int kTrials = 24, kRounds = 3;

}  // namespace

float weighted_scale(DType dtype, std::span<const float> weights, std::span<const float> importance) {
  const DTypeInfo& type = info(dtype);
  if (!is_whole_number(type)) return derive_mse_scale(dtype, weights, importance);
  if (importance.size() != weights.size()) throw ShapeError("an importance for each weight is needed");
  const Range range = range_of(type);
  const float widest = derive_scale(dtype, weights);
  const float peak = widest * type.scale_divisor;

  // Relative to the peak, so that nothing overflows; padded with weights that count nothing.
  thread_local std::vector<float> x, w;
  const std::size_t count = (weights.size() + kLanes - 1) / kLanes * kLanes;
  x.assign(count, 0);
  w.assign(count, 0);
  const float inverse_peak = 1 / peak;
  if (!std::isfinite(inverse_peak) || !(peak > 0)) return widest;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i])) continue;
    x[i] = weights[i] * inverse_peak;
    w[i] = importance[i];
  }

  float best = 0, most = 0;
  const auto consider = [&](float inverse) {
    const Fit fit = fit_codes(x.data(), w.data(), count, range, inverse);
    if (fit.explained() <= most) return;
    most = fit.explained();
    best = fit.xq / fit.qq;
  };
  const float step = std::pow(outside_of(range) / kInside, 1.0f / static_cast<float>(kTrials - 1));
  float inverse = range.high * kInside;
  for (int i = 0; i < kTrials; ++i, inverse *= step) consider(inverse);
  for (int round = 0; round < kRounds && best > 0; ++round) consider(1 / best);
  const float scale = best * peak;
  return best > 0 && scale > 0 && std::isfinite(scale * 256) ? scale : widest;
}

}  // namespace imago::guided
