#include "layers/meta_rules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "imago/error.h"
#include "testing/gradient_check.h"

namespace imago::layers {
namespace {

using testing::random_tensor;

Observation seen_with(const TensorStats& input, const TensorStats& output) { return {input, output, nullptr}; }

/// True just above the threshold and false just below it, or the other way round.
void expect_edge(int condition, const Observation& seen, double edge, bool holds_below_threshold) {
  MetaRule rule;
  rule.condition = condition;
  rule.threshold = edge - 1e-3;
  EXPECT_EQ(condition_holds(rule, seen), !holds_below_threshold) << condition;
  rule.threshold = edge + 1e-3;
  EXPECT_EQ(condition_holds(rule, seen), holds_below_threshold) << condition;
}

TEST(MetaRules, StatisticsOfATensor) {
  const TensorStats stats = stats_of(Tensor<float>(Shape{2, 2}, {1, -1, 1e-7f, 2}));
  EXPECT_NEAR(stats.average, 0.5, 1e-6);
  EXPECT_NEAR(stats.deviation, std::sqrt(1.5 - 0.25), 1e-6);
  EXPECT_EQ(stats.maximum, 2);
  EXPECT_EQ(stats.minimum, -1);
  EXPECT_EQ(stats.active, 3u);
  EXPECT_EQ(stats.total, 4u);
  EXPECT_EQ(stats_of(Tensor<float>(Shape{0})).total, 0u);
  EXPECT_EQ(stats_of(Tensor<float>(Shape{3}, {0.1f, 0.1f, 0.1f})).deviation, 0);  // never the root of a negative number
}

TEST(MetaRules, ConditionsOnTheOutput) {
  TensorStats out;
  out.average = -0.4;
  out.deviation = 0.7;
  out.maximum = -0.2;
  out.active = 1;
  out.total = 4;
  const Observation seen = seen_with({}, out);
  expect_edge(1, seen, 0.7, false);
  expect_edge(2, seen, 0.7, true);
  expect_edge(3, seen, 0.4, false);
  expect_edge(4, seen, 0.4, true);
  expect_edge(5, seen, 0.2, false);
  expect_edge(6, seen, 0.25, true);
  for (const int never : {0, 9, -1}) {
    MetaRule rule;
    rule.condition = never;
    rule.threshold = -1;
    EXPECT_FALSE(condition_holds(rule, seen)) << never;
  }
}

TEST(MetaRules, GradientStormComparesWithTwoInputsBefore) {
  std::deque<TensorStats> history(2);
  Observation seen;
  MetaRule rule;
  rule.condition = 7;
  rule.threshold = 1.5;
  EXPECT_FALSE(condition_holds(rule, seen));
  seen.history = &history;
  history[0].deviation = 1;
  history[1].deviation = 100;
  EXPECT_FALSE(condition_holds(rule, seen));  // two entries are not enough
  history.emplace_back().deviation = 2;
  expect_edge(7, seen, 2, false);
  history[0].deviation = 0;
  EXPECT_FALSE(condition_holds(rule, seen));
}

TEST(MetaRules, GainDriftComparesAverages) {
  TensorStats in, out;
  in.average = -2;
  out.average = 3;
  expect_edge(8, seen_with(in, out), 0.5, false);
  out.average = 1;
  expect_edge(8, seen_with(in, out), 0.5, false);
  in.average = 1e-7;
  MetaRule rule;
  rule.condition = 8;
  EXPECT_FALSE(condition_holds(rule, seen_with(in, out)));
}

TEST(MetaRules, FloatsBecomeIntsWithoutSurprise) {
  EXPECT_EQ(int_of(-2.9f), -2);
  EXPECT_EQ(int_of(std::numeric_limits<float>::quiet_NaN()), 0);
  EXPECT_EQ(int_of(1e20f), std::numeric_limits<int>::max());
  EXPECT_EQ(int_of(-1e20f), std::numeric_limits<int>::min());
}

/// A layer after a command, run on `x` as it is then.
struct Changed {
  Layer layer;
  std::vector<float> old;
  bool changed = false;
  LayerState state;
};

Changed command(Layer layer, int code, float param, const Tensor<float>& x) {
  Changed result;
  layers::Run run;
  testing::randomize_layer(layer, 3);
  if (layer.weights) result.old.assign(layer.weights->master().begin(), layer.weights->master().end());
  forward_layer(layer, x, nullptr, result.state, run);
  const Tensor<float> before = result.state.post;
  result.changed = execute_command(layer, code, param, {&x.shape(), &before.shape()}, run);
  forward_layer(layer, x, nullptr, result.state, run);
  result.layer = std::move(layer);
  return result;
}

void expect_prefix(const Changed& result) {
  const std::span<const float> now = result.layer.weights->master();
  for (std::size_t i = 0; i < std::min(now.size(), result.old.size()); ++i) EXPECT_EQ(now[i], result.old[i]) << i;
}

TEST(MetaCommands, MakeLayersThatRun) {
  struct Case {
    int code;
    LayerType type;
    std::size_t weights, outputs;
  };
  constexpr std::size_t I = 4, O = 3, M = 16;
  const Case cases[] = {
      {80, LayerType::cnn1, 3, O},
      {81, LayerType::rnn, O * I + O * O + O, O},
      {83, LayerType::softmax, 0, I},
      {90, LayerType::rms_norm, I, I},
      {91, LayerType::swiglu, 3 * I * M + 2 * M + I, I},
      {92, LayerType::multi_head_attention, 4 * I * I + 4 * I, I},
      {93, LayerType::lstm, 4 * (O * I + O * O + O), O},
      {98, LayerType::kmeans, O * I, O},
  };
  const Tensor<float> x = random_tensor({5, I}, 1);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.code);
    const Changed result = command(dense(I, O), c.code, 0, x);
    EXPECT_TRUE(result.changed);
    EXPECT_EQ(result.layer.config.type, c.type);
    EXPECT_EQ(result.layer.weights ? result.layer.weights->count() : 0, c.weights);
    EXPECT_EQ(result.state.post.size(), 5 * c.outputs);
    if (c.weights != 0 && c.type != LayerType::rms_norm) expect_prefix(result);
    for (const float value : result.state.post.values()) EXPECT_TRUE(std::isfinite(value));
  }
}

TEST(MetaCommands, NewMatricesAreNotZero) {
  const Changed result = command(dense(2, 2), 91, 0, random_tensor({3, 2}, 2));
  const std::span<const float> weights = result.layer.weights->master();
  const auto down = weights.subspan(2 * 2 * 8, 2 * 8);  // Wd lies past what the prefix covers
  for (const float weight : down) EXPECT_NE(weight, 0);
  for (const float bias : weights.subspan(3 * 2 * 8)) EXPECT_EQ(bias, 0);
}

TEST(MetaCommands, ALayerThatBecomesANormStartsWithOnes) {
  const Changed fresh = command(dense(4, 4), 90, 0, random_tensor({2, 4}, 3));
  for (const float gamma : fresh.layer.weights->master()) EXPECT_EQ(gamma, 1);
  const Changed norm = command(layer_norm(4), 90, 0, random_tensor({2, 4}, 3));
  EXPECT_EQ(norm.layer.weights->count(), 4u);
  expect_prefix(norm);
}

TEST(MetaCommands, DenseFromANormKeepsItsWeightsInFront) {
  const Changed result = command(rms_norm(4), 70, 0, random_tensor({2, 4}, 4));
  EXPECT_EQ(result.layer.config.type, LayerType::dense);
  EXPECT_EQ(result.layer.config.activation, Activation::linear);
  EXPECT_EQ(result.layer.weights->count(), 16u);
  EXPECT_EQ(result.state.post.shape(), (Shape{2, 4}));
  expect_prefix(result);
}

TEST(MetaCommands, SizesThatSettingsLeaveOutAreMeasured) {
  const Changed result = command(softmax(), 70, 0, random_tensor({2, 6}, 5));
  EXPECT_TRUE(result.changed);
  EXPECT_EQ(result.layer.config.input_height, 6);
  EXPECT_EQ(result.layer.config.output_height, 6);
  Layer unseen = softmax();
  layers::Run run;
  EXPECT_FALSE(execute_command(unseen, 70, 0, {}, run));
  EXPECT_EQ(unseen.config.type, LayerType::softmax);
}

TEST(MetaCommands, ConvolutionsAreFlattened) {
  const Changed result = command(convolution(2, {.channels = 2, .filters = 3, .kernel = 3, .height = 5, .width = 4}),
                                 70, 0, random_tensor({2, 2, 5, 4}, 6));
  EXPECT_EQ(result.layer.config.input_height, 40);
  EXPECT_EQ(result.layer.config.output_height, 3 * 3 * 2);
  EXPECT_EQ(result.state.post.shape(), (Shape{2, 18}));
}

TEST(MetaCommands, ClustersComeFromTheParameterThenTheOutputsThenTwo) {
  const Tensor<float> x = random_tensor({2, 4}, 7);
  EXPECT_EQ(command(dense(4, 3), 98, 5, x).layer.config.num_clusters, 5);
  EXPECT_EQ(command(dense(4, 3), 98, 0, x).layer.config.num_clusters, 3);
  EXPECT_EQ(command(softmax(), 98, -1, x).layer.config.num_clusters, 2);
}

TEST(MetaCommands, ChangeOfTypeOfNumbers) {
  const Tensor<float> x = random_tensor({2, 4}, 8);
  const Changed result = command(dense(4, 3), 99, 9, x);
  EXPECT_TRUE(result.changed);
  EXPECT_EQ(result.layer.config.dtype, DType::int8);
  expect_prefix(result);
  EXPECT_FALSE(command(dense(4, 3), 99, 1, x).changed);
  EXPECT_THROW(command(dense(4, 3), 99, 21, x), UsageError);
  EXPECT_THROW(command(dense(4, 3), 99, -1, x), UsageError);
}

TEST(MetaCommands, IdentityWeights) {
  const Tensor<float> x = random_tensor({2, 4}, 9);
  const Changed square = command(dense(4, 4), 101, 0, x);
  EXPECT_TRUE(square.changed);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_FLOAT_EQ(square.state.post[i], x[i]);
  const Changed single = command(dense(4, 1), 101, 0, x);
  EXPECT_FLOAT_EQ(single.state.post[0], x[0]);
  EXPECT_FLOAT_EQ(single.state.post[1], x[4]);
  EXPECT_FALSE(command(dense(4, 2), 101, 0, x).changed);
  Layer again = dense(4, 4);
  again.weights.emplace(4, 4).set_master(square.layer.weights->master());
  layers::Run run;
  EXPECT_FALSE(execute_command(again, 101, 0, {}, run));
}

TEST(MetaCommands, WhatChangesNothing) {
  const Tensor<float> x = random_tensor({2, 4}, 10);
  EXPECT_FALSE(command(dense(4, 3, Activation::tanh), 70, 0, x).changed);  // is a Dense already
  EXPECT_FALSE(command(sequential(layer_list(dense(4, 4))), 90, 0, x).changed);
  EXPECT_FALSE(command(parallel("add", layer_list(dense(4, 4))), 90, 0, x).changed);
  for (const int unknown : {0, 69, 71, 100}) EXPECT_FALSE(command(dense(4, 4), unknown, 0, x).changed) << unknown;
}

TEST(MetaCommands, GroupsThatNoLongerFitBecomeOneScale) {
  Layer layer = dense(32, 32);
  layer.config.dtype = DType::int8;
  layer.config.granularity = Granularity::group;
  layer.config.group = 32;
  const Changed result = command(std::move(layer), 93, 0, random_tensor({2, 32}, 11));
  EXPECT_EQ(result.layer.config.granularity,
            result.layer.weights->cols() % 32 == 0 ? Granularity::group : Granularity::tensor);
  Layer narrow = dense(32, 30);
  narrow.config.dtype = DType::int8;
  narrow.config.granularity = Granularity::group;
  narrow.config.group = 32;
  const Changed odd = command(std::move(narrow), 93, 0, random_tensor({2, 32}, 11));
  EXPECT_EQ(odd.layer.config.granularity, Granularity::tensor);
  EXPECT_EQ(odd.layer.config.group, 0);
}

}  // namespace
}  // namespace imago::layers
