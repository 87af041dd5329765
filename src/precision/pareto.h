#pragma once

// Which points nothing else beats.

#include <span>
#include <vector>

namespace imago::precision {

struct SizeAndCost {
  double size = 0, cost = 0;  ///< less is better, of both
};

/// True for the points that no other one equals or beats in both and beats in one. Points whose cost is not finite are
/// never among them.
std::vector<bool> pareto_front(std::span<const SizeAndCost> points);

}  // namespace imago::precision
