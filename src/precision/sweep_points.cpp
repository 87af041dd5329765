#include "precision/sweep_points.h"

#include <limits>
#include <vector>

#include "precision/pareto.h"

namespace imago {

double SweepPoint::cost() const noexcept {
  if (divergence) return divergence->mean;
  if (score) return score->loss;
  return relative_rmse.value_or(std::numeric_limits<double>::infinity());
}

std::vector<Format> default_sweep_types() {
  using enum BlockFormat;
  return {DType::float16, DType::bfloat16, q8_0,   DType::fp8e4m3, DType::int8, q6_k,  q5_k, q5_1,        q5_0, q4_1,
          q4_k,           iq4_nl,          iq4_xs, q4_0,           nvfp4,       mxfp4, q3_k, DType::int4, q2_k};
}

void precision::mark_front(std::span<SweepPoint> points) {
  std::vector<SizeAndCost> coordinates;
  for (const SweepPoint& point : points) coordinates.push_back({static_cast<double>(point.bytes), point.cost()});
  const std::vector<bool> front = pareto_front(coordinates);
  for (std::size_t i = 0; i < points.size(); ++i) points[i].on_front = front[i];
}

}  // namespace imago
