// Routing beside a plain computation in double that sorts all experts.

#include "backend/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace imago::backend {
namespace {

struct Plain {
  std::vector<std::size_t> chosen;
  std::vector<double> weights;
};

Plain plain_route(const Experts& experts, std::span<const float> products, std::span<const float> bias) {
  std::vector<double> scores(products.begin(), products.end());
  if (experts.scores == ExpertScores::sigmoid) {
    for (double& score : scores) score = 1 / (1 + std::exp(-score));
  } else {
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score);
    for (double& score : scores) score /= sum;
  }
  const auto rank = [&](std::size_t e) { return scores[e] + (bias.empty() ? 0 : bias[e]); };
  const std::size_t size = experts.count / experts.groups;
  std::vector<std::pair<double, std::size_t>> groups;
  for (std::size_t g = 0; g < experts.groups; ++g) {
    std::vector<double> own;
    for (std::size_t e = g * size; e < (g + 1) * size; ++e) own.push_back(rank(e));
    std::sort(own.rbegin(), own.rend());
    groups.emplace_back(-(own[0] + (experts.two_judge_group ? own[1] : 0)), g);
  }
  std::sort(groups.begin(), groups.end());
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < experts.groups_used; ++i) {
    for (std::size_t e = 0; e < size; ++e) {
      const std::size_t expert = groups[i].second * size + e;
      order.emplace_back(-rank(expert), expert);
    }
  }
  std::sort(order.begin(), order.end());
  Plain plain;
  double sum = 0;
  for (std::size_t i = 0; i < experts.used; ++i) {
    plain.chosen.push_back(order[i].second);
    plain.weights.push_back(scores[order[i].second]);
    sum += plain.weights.back();
  }
  for (double& weight : plain.weights) weight *= experts.scale / (experts.normalize ? sum : 1);
  return plain;
}

TEST(Routing, MatchesAPlainComputation) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const ExpertScores scores : {ExpertScores::softmax, ExpertScores::sigmoid}) {
    for (const std::size_t groups : {1, 2, 4}) {
      for (const bool biased : {false, true}) {
        const Experts experts{.count = 16,
                              .used = 3,
                              .scores = scores,
                              .groups = groups,
                              .groups_used = (groups + 1) / 2,
                              .two_judge_group = biased,
                              .normalize = biased,
                              .scale = 2.5f};
        constexpr std::size_t kTokens = 40;
        std::vector<float> products(kTokens * experts.count), bias(biased ? experts.count : 0);
        for (float& one : products) one = normal(random);
        for (float& one : bias) one = 0.3f * normal(random);
        std::vector<float> overwritten = products;
        Routing routing;
        routing.route(experts, overwritten, bias, kTokens);
        std::vector<std::size_t> seen(experts.count);
        for (std::size_t t = 0; t < kTokens; ++t) {
          const Plain plain = plain_route(experts, std::span(products).subspan(t * experts.count, experts.count), bias);
          for (std::size_t i = 0; i < experts.used; ++i) {
            const std::size_t at = t * experts.used + i;
            ASSERT_EQ(routing.chosen[at], plain.chosen[i]) << "token " << t;
            EXPECT_NEAR(routing.weights[at], plain.weights[i], 1e-6);
            EXPECT_EQ(routing.row_of[at], routing.firsts[plain.chosen[i]] + seen[plain.chosen[i]]++);
          }
        }
        EXPECT_EQ(routing.firsts.back(), kTokens * experts.used);
      }
    }
  }
}

TEST(Routing, GivesDrawsToTheLowerNumber) {
  const Experts experts{.count = 8, .used = 3, .groups = 4, .groups_used = 2};
  std::vector<float> equal(8, 1.0f);
  Routing routing;
  routing.route(experts, equal, {}, 1);
  EXPECT_EQ(std::vector(routing.chosen.begin(), routing.chosen.begin() + 3), (std::vector<std::size_t>{0, 1, 2}));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_FLOAT_EQ(routing.weights[i], 1.0f / 3);
}

// A bias that decides for an expert whose score is tiny leaves its weight tiny: it only chooses.
TEST(Routing, LetsTheBiasOnlyChoose) {
  const Experts experts{.count = 4, .used = 1, .scores = ExpertScores::sigmoid, .normalize = false};
  std::vector<float> products = {3, 2, 1, -5};
  const std::vector<float> bias = {0, 0, 0, 9};
  Routing routing;
  routing.route(experts, products, bias, 1);
  EXPECT_EQ(routing.chosen[0], 3u);
  EXPECT_NEAR(routing.weights[0], 1 / (1 + std::exp(5.0)), 1e-6);
}

// Numbers of experts scale their weights and choose nothing.
TEST(Routing, ScalesWeightsByExpert) {
  const Experts experts{.count = 4, .used = 2};
  std::vector<float> products = {0, std::log(3.0F), 0, std::log(2.0F)};
  const std::vector<float> scales = {100, 2, 100, -1};
  Routing routing;
  routing.route(experts, products, {}, 1, scales);
  EXPECT_EQ(std::vector(routing.chosen.begin(), routing.chosen.begin() + 2), (std::vector<std::size_t>{1, 3}));
  EXPECT_NEAR(routing.weights[0], 2 * 3.0 / 5, 1e-6);
  EXPECT_NEAR(routing.weights[1], -2.0 / 5, 1e-6);
}

// A group that is left out stays out, even where all the others score below 0.
TEST(Routing, TakesNoneOfTheOtherGroups) {
  const Experts experts{
      .count = 4, .used = 2, .scores = ExpertScores::sigmoid, .groups = 2, .groups_used = 1, .two_judge_group = true};
  std::vector<float> products = {0, 0, 0, 0};
  const std::vector<float> bias = {-2, -2, -3, -3};
  Routing routing;
  routing.route(experts, products, bias, 1);
  EXPECT_EQ(routing.chosen[0], 0u);
  EXPECT_EQ(routing.chosen[1], 1u);
}

// Activations that have become NaN send tokens somewhere, but to experts that exist and with rows that fit.
TEST(Routing, SurvivesScoresThatAreNoNumbers) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  for (const std::size_t groups : {1, 2}) {
    const Experts experts{.count = 4, .used = 2, .groups = groups, .groups_used = 1, .two_judge_group = groups == 2};
    std::vector<float> products = {kNan, 0, kInfinity, kNan, kNan, kNan, kNan, kNan, -kInfinity, -kInfinity, 0, 1};
    Routing routing;
    routing.route(experts, products, {}, 3);
    EXPECT_EQ(routing.firsts.back(), 6u);
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_LT(routing.chosen[i], 4u);
      EXPECT_LT(routing.row_of[i], 6u);
    }
  }
}

}  // namespace
}  // namespace imago::backend
