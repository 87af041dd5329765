// Predictions against the same sums in double, one exponential after the other.

#include "lm/prediction.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace imago::lm {
namespace {

std::vector<float> random_logits(std::size_t count, unsigned seed, float spread) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(generator);
  return logits;
}

std::vector<double> exact_log_softmax(std::span<const float> logits) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  std::vector<double> logs;
  for (const float logit : logits) logs.push_back(static_cast<double>(logit) - std::log(sum));
  return logs;
}

TEST(Prediction, IsTheSoftmax) {
  for (const float spread : {0.1f, 1.0f, 6.0f}) {
    for (const std::size_t count : {1u, 7u, 1000u, 8192u}) {
      const std::vector<float> logits = random_logits(count, 1, spread);
      Prediction prediction;
      prediction.set(logits);
      const std::vector<double> wanted = exact_log_softmax(logits);
      for (std::size_t i = 0; i < count; ++i) ASSERT_NEAR(prediction.log_probability(i), wanted[i], 1e-7) << i;
    }
  }
}

TEST(Prediction, SmallDivergencesAreNotLostInRounding) {
  // KL of 1e-6 is what float16 weights cost: sums of floats would be rounding and nothing else.
  const std::vector<float> logits = random_logits(8192, 2, 4);
  const std::vector<double> p = exact_log_softmax(logits);
  for (const float change : {1e-3f, 1e-2f, 0.3f}) {
    std::vector<float> others = random_logits(8192, 3, change);
    for (std::size_t i = 0; i < others.size(); ++i) others[i] += logits[i];
    const std::vector<double> q = exact_log_softmax(others);
    double wanted = 0;
    for (std::size_t i = 0; i < p.size(); ++i) wanted += std::exp(p[i]) * (p[i] - q[i]);
    Prediction ours, theirs;
    ours.set(logits);
    theirs.set(others);
    // The exponentials are float32: the plain kernels are off by 2.8e-8 here, those of AVX-512 by less than 2e-8.
    EXPECT_NEAR(ours.divergence_of(theirs), wanted, 5e-8 + 1e-5 * wanted) << change;
    EXPECT_EQ(ours.divergence_of(ours), 0);
  }
}

TEST(Prediction, RuledOutTokensAndNoNumbers) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> some = {1, -infinity, 0}, all = {1, 1, 0}, none = {1, std::nanf(""), 0};
  Prediction a, b, c;
  a.set(some);
  b.set(all);
  c.set(none);
  EXPECT_NEAR(a.divergence_of(b), std::log((2 * std::exp(1.0) + 1) / (std::exp(1.0) + 1)), 1e-6);
  EXPECT_EQ(b.divergence_of(a), infinity) << "it rules out what the other expects";
  EXPECT_EQ(a.divergence_of(c), infinity);
}

}  // namespace
}  // namespace imago::lm
