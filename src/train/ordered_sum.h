#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "base/parallel.h"

namespace imago {

/// The sum of part(begin, end) over pieces of [0, count), on all threads. The pieces depend on `count` and `grain`
/// alone and are added in order, so the sum is the same for every number of threads. REQUIRES: grain > 0.
template <class Part>
double ordered_sum(std::size_t count, std::size_t grain, Part&& part) {
  constexpr std::size_t kMostPieces = 64;  // enough for the cores of today; no allocation
  if (count == 0) return 0;
  const std::size_t pieces = std::min((count - 1) / grain + 1, kMostPieces);
  std::array<double, kMostPieces> sums{};
  parallel_for(pieces, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) sums[i] = part(count * i / pieces, count * (i + 1) / pieces);
  });
  double total = 0;
  for (std::size_t i = 0; i < pieces; ++i) total += sums[i];
  return total;
}

}  // namespace imago
