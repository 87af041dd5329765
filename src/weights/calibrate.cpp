#include "weights/calibrate.h"

#include <algorithm>
#include <cassert>

#include "base/parallel.h"
#include "imago/numeric.h"

namespace imago {

namespace {

// A part of the work for one thread: at absmax, the cheapest calibrator, these weights take some 10 µs.
constexpr std::size_t kGrainWeights = 16384;

float derive_one(const Scheme& scheme, std::span<const float> weights) {
  const DType dtype = scheme.format.dtype();
  switch (scheme.calibrator) {
    case Calibrator::absmax: return derive_scale(dtype, weights);
    case Calibrator::percentile: return derive_percentile_scale(dtype, weights, scheme.percentile);
    case Calibrator::mse: return derive_mse_scale(dtype, weights);
    case Calibrator::absmean: break;
  }
  return derive_absmean_scale(weights);
}

/// The lowest and highest weight of each part, and 0. The absmax scale of these few is that of all weights, whatever
/// the type makes of signs: both rules of spec §3.2 look at the extremes only, and 0 moves neither.
std::vector<float> extremes(std::span<const float> weights) {
  const std::size_t parts = (weights.size() + kGrainWeights - 1) / kGrainWeights;
  std::vector<float> found(2 * parts);
  parallel_for(parts, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t part = begin; part < end; ++part) {
      const std::size_t first = part * kGrainWeights;
      float low = 0;
      float high = 0;
      for (const float w : weights.subspan(first, std::min(kGrainWeights, weights.size() - first))) {
        low = w < low ? w : low;  // false for NaN, which is passed over
        high = w > high ? w : high;
      }
      found[2 * part] = low;
      found[2 * part + 1] = high;
    }
  });
  return found;
}

}  // namespace

std::vector<float> derive_scales(const Scheme& scheme, const ScaleLayout& layout, std::span<const float> weights) {
  if (layout.count == 0) return {};
  assert(layout.count * layout.group == weights.size());
  const bool averages = info(scheme.format.dtype()).kind == NumberKind::binary;
  if (layout.count == 1 && scheme.calibrator == Calibrator::absmax && !averages) {
    return {derive_one(scheme, extremes(weights))};
  }
  std::vector<float> scales(layout.count);
  const std::size_t grain = std::max<std::size_t>(1, kGrainWeights / std::max<std::size_t>(1, layout.group));
  parallel_for(layout.count, grain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      scales[i] = derive_one(scheme, weights.subspan(i * layout.group, layout.group));
    }
  });
  return scales;
}

}  // namespace imago
