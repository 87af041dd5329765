#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "imago/error.h"
#include "imago/lm.h"

namespace imago {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// All cuts off.
SamplerOptions plain(float temperature = 1) {
  SamplerOptions options;
  options.temperature = temperature;
  options.top_k = 0;
  options.top_p = 1;
  options.min_p = 0;
  options.seed = 1234;
  return options;
}

std::vector<float> logs(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

/// Draws `draws` tokens and holds their counts against `wanted` by chi-square; tokens of probability 0 must not come.
void expect_distribution(const SamplerOptions& options, const std::vector<float>& logits,
                         const std::vector<double>& wanted, const std::string& what) {
  constexpr int kDraws = 20000;
  Sampler sampler(options);
  std::vector<int> counts(wanted.size());
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<std::size_t>(sampler.sample(logits))];
  double chi_square = 0;
  int degrees = -1;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] == 0) {
      EXPECT_EQ(counts[i], 0) << what << ": token " << i;
      continue;
    }
    const double expected = wanted[i] * kDraws;
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++degrees;
  }
  // Mean `degrees`, deviation sqrt(2·degrees): five of them beyond it is a wrong distribution.
  EXPECT_LT(chi_square, degrees + 5 * std::sqrt(2.0 * std::max(degrees, 1))) << what;
}

std::vector<double> normalized(std::vector<double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= sum;
  return weights;
}

const std::vector<double> kDice = {0.05, 0.4, 0.1, 0.25, 0.15, 0.05};

TEST(Greedy, TakesTheLargestOfEqualOnesTheFirst) {
  Sampler sampler(plain(0));
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 2}), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 3, 3}), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{kNaN, -5, kNaN, -4}), 3);
  EXPECT_EQ(sampler.sample(std::vector<float>{-kInfinity, -kInfinity, -1e30f}), 2);
  EXPECT_EQ(sampler.sample(std::vector<float>{0, kInfinity, 7}), 1);
}

TEST(Sampling, FollowsTheModel) { expect_distribution(plain(), logs(kDice), kDice, "plain"); }

TEST(Sampling, TemperatureSharpensAndFlattens) {
  for (const double temperature : {0.5, 2.0}) {
    std::vector<double> wanted;
    for (const double p : kDice) wanted.push_back(std::pow(p, 1 / temperature));
    expect_distribution(plain(static_cast<float>(temperature)), logs(kDice), normalized(wanted), "temperature");
  }
  Sampler cold(plain(1e-30f));
  EXPECT_EQ(cold.sample(logs(kDice)), 1);
}

TEST(Sampling, TopKKeepsTheLargest) {
  SamplerOptions options = plain();
  options.top_k = 3;
  expect_distribution(options, logs(kDice), normalized({0, 0.4, 0, 0.25, 0.15, 0}), "top-k");
  options.top_k = 5;  // two have 0.05: the lower id stays
  expect_distribution(options, logs(kDice), normalized({0.05, 0.4, 0.1, 0.25, 0.15, 0}), "top-k of equals");
  options.top_k = 100;
  expect_distribution(options, logs(kDice), kDice, "top-k beyond all");
}

TEST(Sampling, TopPKeepsTheFewestThatReachIt) {
  SamplerOptions options = plain();
  options.top_p = 0.7f;
  expect_distribution(options, logs(kDice), normalized({0, 0.4, 0, 0.25, 0.15, 0}), "top-p");
  options.top_p = 0.01f;
  expect_distribution(options, logs(kDice), {0, 1, 0, 0, 0, 0}, "top-p below the first");
}

TEST(Sampling, MinPKeepsWhatIsNearTheLargest) {
  SamplerOptions options = plain();
  options.min_p = 0.3f;  // 0.4 · 0.3 = 0.12
  expect_distribution(options, logs(kDice), normalized({0, 0.4, 0, 0.25, 0.15, 0}), "min-p");
  options.min_p = 1;
  expect_distribution(options, logs(kDice), {0, 1, 0, 0, 0, 0}, "min-p 1");
}

TEST(Sampling, TypicalKeepsWhatIsAsSurprisingAsExpected) {
  // Entropy of kDice: 1.510 nats. Surprises 2.996, 0.916, 2.303, 1.386, 1.897, 2.996: nearest are 3 (0.124), 4 (0.387),
  // 1 (0.594), 2 (0.793), then the rest.
  SamplerOptions options = plain();
  options.typical_p = 0.35f;
  expect_distribution(options, logs(kDice), normalized({0, 0, 0, 0.25, 0.15, 0}), "typical");
  options.typical_p = 0.75f;
  expect_distribution(options, logs(kDice), normalized({0, 0.4, 0, 0.25, 0.15, 0}), "typical");
}

TEST(Sampling, CutsComeBeforeTemperatureAndSeeWhatIsLeft) {
  SamplerOptions options = plain(2);
  options.top_k = 4;     // 0.4 0.25 0.15 0.1, together 0.9
  options.top_p = 0.8f;  // of those: 0.444 + 0.278 + 0.167 = 0.889
  std::vector<double> wanted = {0, std::sqrt(0.4), 0, std::sqrt(0.25), std::sqrt(0.15), 0};
  expect_distribution(options, logs(kDice), normalized(wanted), "chain");
}

TEST(Sampling, BiasIsAddedAndForbids) {
  SamplerOptions options = plain();
  options.bias = {{0, std::log(4.0f)}, {1, -kInfinity}};
  expect_distribution(options, logs(kDice), normalized({0.2, 0, 0.1, 0.25, 0.15, 0.05}), "bias");
  options.bias = {{6, 1.0f}};
  EXPECT_THROW(Sampler(options).sample(logs(kDice)), UsageError);
}

TEST(Penalties, LowerWhatCameBefore) {
  SamplerOptions options = plain(0);
  options.repeat_penalty = 2;
  const std::vector<float> logits = {4, 3, -1, -1.5f};
  {
    Sampler sampler(options);
    EXPECT_EQ(sampler.sample(logits), 0);
    EXPECT_EQ(sampler.sample(logits), 1);  // 0 is at 2 now
    EXPECT_EQ(sampler.sample(logits), 0);  // 2 against 1.5
  }
  Sampler told(options);
  told.accept(2);
  EXPECT_EQ(told.sample(std::vector<float>{-9, -9, -1, -1.5f}), 3);  // a negative logit doubles
  options.repeat_penalty = 1;
  options.presence_penalty = 0.5f;
  options.frequency_penalty = 0.3f;
  Sampler counting(options);
  const std::vector<float> near = {4, 3};
  EXPECT_EQ(counting.sample(near), 0);
  EXPECT_EQ(counting.sample(near), 0);  // 4 - 0.8
  EXPECT_EQ(counting.sample(near), 1);  // 4 - 1.1 = 2.9
}

TEST(Penalties, LookBackAsFarAsAsked) {
  SamplerOptions options = plain(0);
  options.presence_penalty = 10;
  options.penalty_tokens = 2;
  Sampler sampler(options);
  for (const TokenId id : {0, 1, 2}) sampler.accept(id);
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 2, 3}), 0);  // forgotten by now
  options.penalty_tokens = -1;
  Sampler all(options);
  for (const TokenId id : {0, 1, 2}) all.accept(id);
  EXPECT_EQ(all.sample(std::vector<float>{1, 2, 3}), 2);
  options.penalty_tokens = 0;
  Sampler none(options);
  none.accept(2);
  EXPECT_EQ(none.sample(std::vector<float>{1, 2, 3}), 2);
}

TEST(Seed, RepeatsAndDiffers) {
  const auto drawn = [](std::uint64_t seed) {
    SamplerOptions options = plain();
    options.seed = seed;
    Sampler sampler(options);
    std::vector<TokenId> ids;
    for (int i = 0; i < 50; ++i) ids.push_back(sampler.sample(logs(kDice)));
    return ids;
  };
  EXPECT_EQ(drawn(7), drawn(7));
  EXPECT_NE(drawn(7), drawn(8));
}

TEST(Sampling, NeverTakesNaN) {
  SamplerOptions options;
  options.seed = 3;
  Sampler sampler(options);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(sampler.sample(std::vector<float>{kNaN, 0.5f, kNaN, -kInfinity}), 1);
  EXPECT_THROW(sampler.sample(std::vector<float>{kNaN, -kInfinity}), UsageError);
  EXPECT_THROW(sampler.sample({}), UsageError);
}

TEST(Options, OutOfRangeAreNamed) {
  const auto problem = [](auto change) -> std::string {
    SamplerOptions options;
    change(options);
    try {
      Sampler sampler(options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "accepted";
  };
  for (const float value : {kNaN, -1.0f, kInfinity, 1e30f}) {
    EXPECT_NE(problem([&](auto& o) { o.temperature = value; }).find("temperature"), std::string::npos) << value;
    EXPECT_NE(problem([&](auto& o) { o.min_p = value; }).find("min_p"), std::string::npos) << value;
    EXPECT_NE(problem([&](auto& o) { o.repeat_penalty = value; }).find("repeat_penalty"), std::string::npos) << value;
  }
  for (const float value : {kNaN, 0.0f, 2.0f, -0.5f}) {
    EXPECT_NE(problem([&](auto& o) { o.top_p = value; }).find("top_p"), std::string::npos) << value;
    EXPECT_NE(problem([&](auto& o) { o.typical_p = value; }).find("typical_p"), std::string::npos) << value;
  }
  for (const float value : {kNaN, kInfinity, -1e30f}) {
    EXPECT_NE(problem([&](auto& o) { o.presence_penalty = value; }).find("presence_penalty"), std::string::npos);
    EXPECT_NE(problem([&](auto& o) { o.frequency_penalty = value; }).find("frequency_penalty"), std::string::npos);
  }
  EXPECT_NE(problem([](auto& o) { o.top_k = -5; }).find("top_k is -5"), std::string::npos);
  EXPECT_NE(problem([](auto& o) { o.penalty_tokens = -2; }).find("penalty_tokens"), std::string::npos);
  EXPECT_NE(problem([](auto& o) { o.bias = {{3, kNaN}}; }).find("bias of token 3"), std::string::npos);
  EXPECT_NE(problem([](auto& o) { o.bias = {{-3, 1.0f}}; }).find("bias"), std::string::npos);
  EXPECT_EQ(problem([](auto&) {}), "accepted");
}

/// Logits of a vocabulary, all different in an order that looks random.
std::vector<float> vocabulary(std::size_t size) {
  std::vector<float> logits(size);
  for (std::size_t i = 0; i < size; ++i)
    logits[i] = static_cast<float>((i * 7919) % size) * 20 / static_cast<float>(size);
  return logits;
}

TEST(TopLogProbabilities, AreThoseOfTheSoftmax) {
  const std::vector<TokenProbability> top = top_log_probabilities(logs(kDice), 2, 4);
  ASSERT_EQ(top.size(), 3u);
  EXPECT_EQ(top[0].id, 1);
  EXPECT_NEAR(top[0].log_probability, std::log(0.4), 1e-6);
  EXPECT_EQ(top[1].id, 3);
  EXPECT_NEAR(top[1].log_probability, std::log(0.25), 1e-6);
  EXPECT_EQ(top[2].id, 4);
  EXPECT_NEAR(top[2].log_probability, std::log(0.15), 1e-6);
  EXPECT_EQ(top_log_probabilities(logs(kDice), 2, 3).size(), 2u);
  EXPECT_EQ(top_log_probabilities(logs(kDice), 1000000).size(), 6u);
  EXPECT_EQ(top_log_probabilities(std::vector<float>{kNaN, 1}, 5).size(), 1u);
  EXPECT_EQ(top_log_probabilities(std::vector<float>{1, 2}, 0, 0).size(), 1u);
  EXPECT_THROW(top_log_probabilities(logs(kDice), 1, 6), UsageError);
  EXPECT_THROW(top_log_probabilities(logs(kDice), 1, -1), UsageError);
}

TEST(TopLogProbabilities, OfAWholeVocabularyAreTheLargest) {
  const std::vector<float> logits = vocabulary(131072);
  std::vector<float> sorted = logits;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const std::vector<TokenProbability> top = top_log_probabilities(logits, 1000);
  ASSERT_EQ(top.size(), 1000u);
  for (std::size_t i = 0; i < top.size(); ++i) EXPECT_EQ(logits[static_cast<std::size_t>(top[i].id)], sorted[i]) << i;
}

}  // namespace
}  // namespace imago
