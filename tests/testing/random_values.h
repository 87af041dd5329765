#pragma once

#include <cstddef>
#include <random>
#include <vector>

namespace imago::testing {

/// Uniform in [-1, 1].
inline std::vector<float> random_values(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(generator);
  return values;
}

}  // namespace imago::testing
