// The maps onto the simplex against what defines them: not the formula that computes them, but the conditions that
// single out the one right answer.

#include "layers/softmax_variants.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace imago::layers {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_row(std::size_t count, unsigned seed, float deviation) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> row(count);
  for (float& value : row) value = normal(generator);
  return row;
}

std::vector<float> sparsemax_of(const std::vector<float>& z) {
  std::vector<float> p(z.size());
  sparsemax<float>(z, p);
  return p;
}

std::vector<float> entmax_of(const std::vector<float>& z, double alpha) {
  std::vector<float> p(z.size());
  entmax<float>(z, alpha, p);
  return p;
}

std::vector<double> softmax_of(const std::vector<float>& z) {
  std::vector<double> p;
  double sum = 0;
  for (const float value : z) sum += p.emplace_back(std::exp(static_cast<double>(value)));
  for (double& value : p) value /= sum;
  return p;
}

double sum_of(const std::vector<float>& p) { return std::accumulate(p.begin(), p.end(), 0.0); }

/// Entmax is the p that maximises p·z + H(p), where dH/dp = -p^(alpha-1) / (alpha-1): on the support z - p^(alpha-1) /
/// (alpha-1) has one value, and no z outside lies above it (Karush, Kuhn, Tucker).
void expect_optimal(const std::vector<float>& z, const std::vector<float>& p, double alpha) {
  EXPECT_NEAR(sum_of(p), 1, 1e-6);
  const std::size_t top = static_cast<std::size_t>(std::ranges::max_element(z) - z.begin());
  const auto level = [&](std::size_t i) {
    return static_cast<double>(z[i]) - std::pow(static_cast<double>(p[i]), alpha - 1) / (alpha - 1);
  };
  ASSERT_GT(p[top], 0);
  for (std::size_t i = 0; i < z.size(); ++i) {
    ASSERT_GE(p[i], 0);
    if (p[i] > 0) {
      EXPECT_NEAR(level(i), level(top), 1e-5) << i;
    } else {
      EXPECT_LE(static_cast<double>(z[i]), level(top) + 1e-5) << i;
    }
  }
}

TEST(Sparsemax, IsTheNearestPoint) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{2}, std::size_t{17}, std::size_t{200}}) {
    for (const float deviation : {0.01f, 0.5f, 3.0f}) {
      const std::vector<float> z = random_row(count, 3, deviation);
      expect_optimal(z, sparsemax_of(z), 2);
    }
  }
}

TEST(Sparsemax, ByHand) {
  EXPECT_EQ(sparsemax_of({0.5f, 0.5f, -9}), (std::vector<float>{0.5f, 0.5f, 0}));
  EXPECT_EQ(sparsemax_of({3, 1, 1}), (std::vector<float>{1, 0, 0}));
  EXPECT_EQ(sparsemax_of({0.25f, 0.75f}), (std::vector<float>{0.25f, 0.75f}));
  EXPECT_EQ(sparsemax_of({-kInfinity, 2, 2}), (std::vector<float>{0, 0.5f, 0.5f}));
  EXPECT_EQ(sparsemax_of({16777216, 16777216}), (std::vector<float>{0.5f, 0.5f}));  // an offset that eats all digits
}

TEST(Entmax, SatisfiesTheOptimalityConditions) {
  for (const double alpha : {1.05, 1.25, 1.5, 1.75, 1.95}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{2}, std::size_t{17}, std::size_t{200}}) {
      for (const float deviation : {0.01f, 0.5f, 3.0f}) {
        SCOPED_TRACE(alpha);
        const std::vector<float> z = random_row(count, 3, deviation);
        expect_optimal(z, entmax_of(z, alpha), alpha);
      }
    }
  }
}

TEST(Entmax, NearOneIsSoftmaxNearTwoSparsemax) {
  const std::vector<float> z = random_row(17, 5, 1);
  const std::vector<double> soft = softmax_of(z);
  const std::vector<float> near_one = entmax_of(z, 1 + 1e-7);
  const std::vector<float> sparse = sparsemax_of(z);
  const std::vector<float> near_two = entmax_of(z, 2 - 1e-7);
  for (std::size_t i = 0; i < z.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(near_one[i]), soft[i], 1e-6);
    EXPECT_NEAR(near_two[i], sparse[i], 1e-6f);
  }
}

TEST(Entmax, TwoValuesByHand) {
  // alpha 1.5: sqrt(p) = z/2 - tau. With z = (1, 0), p = a² and (a - 1/2)² where a² + (a - 1/2)² = 1.
  const double a = (1 + std::sqrt(7.0)) / 4;
  const std::vector<float> p = entmax_of({1, 0}, 1.5);
  EXPECT_FLOAT_EQ(p[0], static_cast<float>(a * a));
  EXPECT_FLOAT_EQ(p[1], static_cast<float>((a - 0.5) * (a - 0.5)));
  EXPECT_EQ(entmax_of({5, 0}, 1.5), (std::vector<float>{1, 0}));
}

TEST(Entmax, MayWorkInPlace) {
  std::vector<float> z = random_row(9, 5, 1);
  const std::vector<float> wanted = entmax_of(z, 1.3);
  entmax<float>(z, 1.3, z);
  EXPECT_EQ(z, wanted);
}

TEST(SoftmaxVariants, RowsWithoutMeaningBecomeNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& z :
       {std::vector<float>{1, nan, 2}, std::vector<float>{kInfinity, 0}, std::vector<float>{-kInfinity, -kInfinity}}) {
    for (const float p : sparsemax_of(z)) EXPECT_TRUE(std::isnan(p));
    for (const float p : entmax_of(z, 1.5)) EXPECT_TRUE(std::isnan(p));
  }
}

TEST(GumbelNoise, HasTheMeanAndVarianceOfItsName) {
  std::vector<float> noise(100'000);
  add_gumbel_noise<float>(noise, 7, 0);
  const double mean = sum_of(noise) / static_cast<double>(noise.size());
  double squares = 0;
  for (const float g : noise) squares += std::pow(static_cast<double>(g) - mean, 2);
  // Euler's constant and pi²/6; the standard errors are 0.004 and 0.011.
  EXPECT_NEAR(mean, 0.5772156649, 0.02);
  EXPECT_NEAR(squares / static_cast<double>(noise.size()), 1.6449340668, 0.06);
}

TEST(GumbelNoise, DependsOnSeedAndIndexAlone) {
  std::vector<float> whole(20), parts(20), other(20);
  add_gumbel_noise<float>(whole, 7, 0);
  add_gumbel_noise<float>(std::span(parts).first(9), 7, 0);
  add_gumbel_noise<float>(std::span(parts).subspan(9), 7, 9);
  add_gumbel_noise<float>(other, 8, 0);
  EXPECT_EQ(whole, parts);
  EXPECT_NE(whole, other);
}

TEST(SimplexBackward, ARowOfZerosGivesZeros) {
  const std::vector<float> p(3), g = {1, 2, 3};
  std::vector<float> gradient(3, 9);
  simplex_backward(p, 1, 1, g, gradient);
  EXPECT_EQ(gradient, p);
}

}  // namespace
}  // namespace imago::layers
