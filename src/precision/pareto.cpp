#include "precision/pareto.h"

#include <algorithm>
#include <cmath>

namespace imago::precision {

std::vector<bool> pareto_front(std::span<const SizeAndCost> points) {
  const auto beats = [](const SizeAndCost& one, const SizeAndCost& other) {
    return one.size <= other.size && one.cost <= other.cost && (one.size < other.size || one.cost < other.cost);
  };
  std::vector<bool> front;
  for (const SizeAndCost& point : points) {
    front.push_back(std::isfinite(point.cost) &&
                    std::ranges::none_of(points, [&](const SizeAndCost& other) { return beats(other, point); }));
  }
  return front;
}

}  // namespace imago::precision
