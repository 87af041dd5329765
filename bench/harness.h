#pragma once

// What every benchmark shares: timing that reports the median and its spread, and data to run on.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

namespace imago::bench {

struct Timing {
  double median = 0;  ///< seconds
  double spread = 0;  ///< (largest - smallest) / median
};

/// Runs `body` once to warm up, then `runs` times.
template <class Body>
Timing measure(int runs, Body&& body) {
  body();
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  return {median, (seconds.back() - seconds.front()) / median};
}

/// Weights as trained layers have them: Gaussian, sd 0.02. A 1 MiB pattern, repeated.
inline std::vector<float> synthetic_weights(std::size_t count) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> weights(count);
  const std::size_t period = std::min<std::size_t>(count, 1u << 18);
  for (std::size_t i = 0; i < period; ++i) weights[i] = normal(generator);
  for (std::size_t i = period; i < count; ++i) weights[i] = weights[i - period];
  return weights;
}

}  // namespace imago::bench
