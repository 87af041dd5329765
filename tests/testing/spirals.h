#pragma once

// Two classes that are not linearly separable: the small problem that networks learn in tests and benchmarks.

#include <cmath>
#include <numbers>

#include "imago/train.h"

namespace imago::testing {

/// Two spirals of one and a half turns around each other: x, y and a constant, since Dense has no bias.
inline Dataset spirals(std::size_t examples, std::uint64_t seed) {
  WeightStore noise(examples, 3);
  noise.randomize(seed, 1);
  Dataset data{Tensor<float>({examples, 3}), Tensor<float>({examples})};
  for (std::size_t i = 0; i < examples; ++i) {
    const auto draw = [&](std::size_t j) { return static_cast<double>(noise.master()[i * 3 + j]); };
    const double along = 0.5 + 0.5 * draw(0), side = static_cast<double>(i % 2);
    const double angle = (3 * along + side) * std::numbers::pi, radius = 0.6 + 3.4 * along;
    data.x[i * 3] = static_cast<float>(radius * std::cos(angle) + 0.04 * draw(1));
    data.x[i * 3 + 1] = static_cast<float>(radius * std::sin(angle) + 0.04 * draw(2));
    data.x[i * 3 + 2] = 1;
    data.y[i] = static_cast<float>(side);
  }
  return data;
}

}  // namespace imago::testing
