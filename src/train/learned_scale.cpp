#include "train/learned_scale.h"

#include <cmath>

#include "base/parallel.h"
#include "weights/views.h"

namespace imago {

namespace {

constexpr std::size_t kGrain = 16384;

/// The scale as it acts: an explicit 0 acts as 1.
float acting_scale(const WeightStore& store, DType dtype) {
  const float scale = store.scale(dtype);
  return scale > 0 ? scale : 1;
}

}  // namespace

bool has_learnable_scale(const LayerConfig& config) noexcept {
  if (!config.dtype.has_scales()) return false;
  const DTypeInfo& type = info(config.dtype.dtype());
  return type.kind != NumberKind::narrow_float && type.bits <= 8 && config.granularity == Granularity::tensor;
}

bool learns_scale(const OptimizerOptions& options, const LayerConfig& config) noexcept {
  return has_learnable_scale(config) && options.learn_scales.value_or(config.dtype.bits() < 3);
}

bool start_scale(WeightStore& store, DType dtype) {
  if (store.morph(dtype)->has_explicit_scale()) return false;
  Scheme best(dtype);
  best.calibrator = Calibrator::mse;
  const std::shared_ptr<const Version> version = store.morph(best);
  store.set_scale(dtype, version->scale(), version->zero_point());
  return true;
}

float log_scale_slope(const WeightStore& store, DType dtype, std::span<const float> gradient) {
  const std::span<const float> master = store.master(), rounded = decoded_weights(store, dtype);
  const float half = acting_scale(store, dtype) / 2;
  // A weight that is further than half a step from its value saturated. Binary codes are all saturated: only the sign
  // of the weight counts.
  const float reach = dtype == DType::binary ? -1 : half * (1 + 0x1p-20f);
  const double sum = ordered_sum(gradient.size(), kGrain, [&](std::size_t begin, std::size_t end) {
    double slope = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const bool saturated = std::fabs(master[i] - rounded[i]) > reach;
      slope += static_cast<double>(gradient[i]) * static_cast<double>(saturated ? rounded[i] : rounded[i] - master[i]);
    }
    return slope;
  });
  const double largest_code = info(dtype).scale_divisor;
  return static_cast<float>(sum / std::sqrt(static_cast<double>(gradient.size()) * largest_code));
}

void move_scale(WeightStore& store, DType dtype, float step) {
  const float scale = acting_scale(store, dtype) * std::exp(step);
  if (std::isnormal(scale)) store.set_scale(dtype, scale, store.zero_point(dtype));
}

}  // namespace imago
