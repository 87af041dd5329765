#include "guided/importance.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "imago/error.h"
#include "imago/numeric.h"
#include "quant/scheme.h"

namespace imago::guided {

namespace {

/// Lanes of a sum, so that the compiler can vectorize it without changing the order of additions.
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

/// Range of scales to try, as the code of the largest weight relative to the largest code: from a little unused range
/// to clipping the few largest weights. Types of one or two bits clip most.
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

  // Relative to the peak, so that nothing overflows; padded with weights of no importance.
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

namespace {

/// Lower bound relative to the mean: small enough that unused columns do not matter besides used ones, but they are
/// still rounded well where all are unused.
constexpr double kLeastImportance = 1e-3;

}  // namespace

std::vector<float> relative_importance(std::span<const float> factors) {
  double sum = 0;
  for (const float factor : factors) {
    if (!(factor >= 0) || !std::isfinite(factor)) {
      throw UsageError("the calibration has second moments that are negative or not finite");
    }
    sum += static_cast<double>(factor);
  }
  const double mean = sum / static_cast<double>(factors.size());
  std::vector<float> relative(factors.size(), 1.0f);
  if (!(mean > 0)) return relative;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    relative[i] = static_cast<float>(std::max(static_cast<double>(factors[i]) / mean, kLeastImportance));
  }
  return relative;
}

AsymmetricScale weighted_scale(const Scheme& scheme, std::span<const float> weights,
                               std::span<const float> importance) {
  const DType dtype = scheme.format.dtype();
  if (has_zero_points(scheme)) return derive_asymmetric_mse_scale(dtype, weights, importance);
  return {weighted_scale(dtype, weights, importance)};
}

ScaleValues weighted_scales(std::span<const float> weights, std::size_t cols, const Scheme& scheme,
                            const ScaleLayout& layout, std::span<const float> importance) {
  if (layout.count == 0) return {};
  if (scheme.calibrator == Calibrator::percentile || scheme.calibrator == Calibrator::absmean) {
    return derive_scales(scheme, layout, weights);
  }
  std::vector<float> whole_tensor;
  if (layout.group > cols) {
    whole_tensor.resize(weights.size());
    for (std::size_t i = 0; i < weights.size(); i += cols) {
      std::ranges::copy(importance, whole_tensor.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  ScaleValues values;
  values.scales.resize(layout.count);
  values.zero_points.resize(layout.count);
  parallel_for(layout.count, std::max<std::size_t>(1, 4096 / layout.group), [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const std::span<const float> factors = whole_tensor.empty()
                                                 ? importance.subspan(i * layout.group % cols, layout.group)
                                                 : std::span<const float>(whole_tensor);
      const AsymmetricScale found = weighted_scale(scheme, weights.subspan(i * layout.group, layout.group), factors);
      values.scales[i] = found.scale;
      values.zero_points[i] = found.zero_point;
    }
  });
  values.normalize();
  return values;
}

}  // namespace imago::guided
