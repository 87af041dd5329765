#include "weights/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"

namespace imago {
namespace {

constexpr std::size_t kCount = 200'000;

double moment(const std::vector<float>& values, int power) {
  double sum = 0;
  for (const float v : values) sum += std::pow(static_cast<double>(v), power);
  return sum / static_cast<double>(values.size());
}

/// How much neighbours at `distance` have to do with each other: 0 for independent weights, up to about 1/sqrt(n).
double correlation(const std::vector<float>& a, const std::vector<float>& b, std::size_t distance) {
  double sum = 0;
  for (std::size_t i = 0; i + distance < a.size(); ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i + distance]);
  }
  return sum / static_cast<double>(a.size() - distance) / std::sqrt(moment(a, 2) * moment(b, 2));
}

// From an independent program (Python, arbitrary-precision integers, the C library's log).
TEST(Random, SameBitsOnEveryMachine) {
  std::vector<float> weights(4);
  fill_uniform(weights, 42, 0.1f);
  EXPECT_EQ(weights, (std::vector<float>{-0x1.00c022p-5f, -0x1.bb39cep-8f, -0x1.09e498p-5f, 0x1.0b97c8p-6f}));
  fill_normal(weights, 42, std::sqrt(2.0 / 50));
  EXPECT_EQ(weights, (std::vector<float>{-0x1.98c65ep-6f, -0x1.0114dcp-8f, -0x1.289a3ap-2f, 0x1.6a78d8p-4f}));
}

TEST(Random, DoesNotDependOnTheNumberOfThreads) {
  const int threads = pool_threads();
  std::vector<float> alone(kCount), together(kCount);
  for (const auto& fill : {+[](std::vector<float>& w) { fill_uniform(w, 7, 1.0f); },
                           +[](std::vector<float>& w) { fill_normal(w, 7, 1.0); }}) {
    set_pool_threads(1);
    fill(alone);
    set_pool_threads(7);
    fill(together);
    EXPECT_EQ(alone, together);
  }
  set_pool_threads(threads);
}

TEST(Random, SeedsGiveUnrelatedWeights) {
  std::vector<float> a(kCount), b(kCount);
  fill_normal(a, 1, 1);
  fill_normal(b, 2, 1);
  for (const std::size_t distance : {0u, 1u, 2u}) {
    EXPECT_NEAR(correlation(a, b, distance), 0, 0.01) << distance;
    EXPECT_NEAR(correlation(a, a, distance + 1), 0, 0.01) << distance;
  }
}

TEST(Random, UniformFillsItsRange) {
  std::vector<float> weights(kCount);
  fill_uniform(weights, 3, 0.25f);
  const auto [low, high] = std::ranges::minmax(weights);
  EXPECT_GE(low, -0.25f);
  EXPECT_LE(high, 0.25f);
  EXPECT_LT(low, -0.2499f);
  EXPECT_GT(high, 0.2499f);
  EXPECT_NEAR(moment(weights, 1), 0, 0.25 * 0.005);
  EXPECT_NEAR(moment(weights, 2), 0.25 * 0.25 / 3, 0.25 * 0.25 / 3 * 0.01);
}

TEST(Random, NormalHasTheMomentsAndTailsOfANormal) {
  std::vector<float> weights(kCount);
  fill_normal(weights, 3, 0.5);
  EXPECT_NEAR(moment(weights, 1), 0, 0.005);
  EXPECT_NEAR(moment(weights, 2), 0.25, 0.0025);
  EXPECT_NEAR(moment(weights, 3), 0, 0.005);
  EXPECT_NEAR(moment(weights, 4), 3 * 0.0625, 0.0075);
  const auto beyond = [&](float limit) {
    return static_cast<double>(std::ranges::count_if(weights, [&](float w) { return std::fabs(w) > limit; })) / kCount;
  };
  EXPECT_NEAR(beyond(0.5f), 0.3173, 0.004);
  EXPECT_NEAR(beyond(1.0f), 0.0455, 0.002);
  EXPECT_NEAR(beyond(1.5f), 0.0027, 0.0005);
}

}  // namespace
}  // namespace imago
