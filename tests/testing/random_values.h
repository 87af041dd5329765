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

/// Normally distributed.
inline std::vector<float> gaussian(std::size_t count, unsigned seed, float deviation = 1, float mean = 0) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

}  // namespace imago::testing
