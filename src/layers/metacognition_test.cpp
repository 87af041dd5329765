#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "imago/error.h"
#include "imago/network.h"
#include "testing/loom.h"
#include "testing/wide_network.h"

namespace imago {
namespace {

using testing::check_network;
using testing::random_network;
using testing::random_tensor;

constexpr int kAlways = 5;  // |max| > -1
constexpr float kToInt8 = 99;
constexpr float kInt8 = 9;

MetaRule rule(int condition, double threshold, float command, float param = 0, int cooldown = 0,
              bool self_only = true) {
  return {condition, threshold, command, param, cooldown, self_only};
}

/// A meta network whose answer is {m0, its inputs…} with "intervention": the result shows what it was given.
std::unique_ptr<Network> showing_network(std::size_t inputs, float m0_of_last) {
  auto network = std::make_unique<Network>(layer_list(dense(static_cast<int>(inputs), static_cast<int>(inputs) + 1)));
  std::vector<float> weights((inputs + 1) * inputs);
  weights[inputs - 1] = m0_of_last;
  for (std::size_t i = 0; i < inputs; ++i) weights[(i + 1) * inputs + i] = 1;
  network->layers()[0].weights->set_master(weights);
  return network;
}

/// Metacognition around Dense 4 -> 4 with a meta network that answers m0 = `answer` for the source "stats".
Network network_with_answer(const std::string& effect, std::vector<float> answer) {
  Layer layer = metacognition(dense(4, 4), {});
  layer.config.meta_source = "stats";
  layer.config.meta_effect = effect;
  layer.meta_network = std::make_unique<Network>(layer_list(dense(6, static_cast<int>(answer.size()))));
  std::vector<float> weights(6 * answer.size());
  for (std::size_t i = 0; i < answer.size(); ++i) weights[i * 6 + 5] = answer[i];  // the last input is 1
  Network network = random_network(layer_list(std::move(layer)));
  network.layers()[0].meta_network->layers()[0].weights->set_master(weights);
  return network;
}

std::vector<float> observed_result(Network& network, const Tensor<float>& x) {
  testing::WideNetwork wide(network);
  const std::vector<double> values = wide.run(testing::widen(x)).values;
  return {values.begin(), values.end()};
}

TEST(Metacognition, IsItsObservedLayerWhenNoRuleFires) {
  Network network = random_network(
      layer_list(metacognition(dense(4, 3, Activation::tanh), {rule(1, 1e6, 90)}), metacognition(dense(3, 2), {})));
  check_network(network, random_tensor({3, 4}, 1));
}

TEST(Metacognition, HasTheDefaultRulesOfTheSpecUnlessOthersAreGiven) {
  const Layer layer = metacognition(dense(4, 4));
  ASSERT_EQ(layer.rules.size(), 3u);
  EXPECT_EQ(layer.rules[0], rule(8, 0.05, 101));
  EXPECT_EQ(layer.rules[1], rule(1, 10, 90, 0, 5));
  EXPECT_EQ(layer.rules[2], rule(6, 0.05, 70, 0, 10));
  EXPECT_TRUE(metacognition(dense(4, 4), {}).rules.empty());

  // The first of them: a mean that changes by more than 5 % makes the layer the identity.
  Network network = random_network(layer_list(metacognition(dense(2, 2))));
  network.layers()[0].observed->weights->set_master(std::vector<float>{3, 0, 0, 3});
  const Tensor<float> x(Shape{1, 2}, {1, 2});
  EXPECT_TRUE(std::ranges::equal(network.forward(x).values(), x.values()));
}

TEST(Metacognition, ObservingNothingIsTheIdentity) {
  Layer layer = metacognition(dense(1, 1), {rule(kAlways, -1, 90)});
  layer.observed.reset();
  Network network(layer_list(std::move(layer)));
  const Tensor<float> x = random_tensor({2, 3}, 2);
  EXPECT_TRUE(std::ranges::equal(network.forward_training(x).values(), x.values()));
  EXPECT_TRUE(std::ranges::equal(network.backward(x).values(), x.values()));
}

TEST(Metacognition, CommandTakesEffectInTheSameForwardAndCanBeTrained) {
  Network network = random_network(layer_list(metacognition(dense(4, 4), {rule(kAlways, -1, 90)}), dense(4, 2)));
  const Tensor<float> x = random_tensor({3, 4}, 3);
  network.forward_training(x);
  network.backward(random_tensor({3, 2}, 4));
  const Layer& observed = *std::as_const(network).layers()[0].observed;
  EXPECT_EQ(observed.config.type, LayerType::rms_norm);
  EXPECT_EQ(network.gradients()[0].children[0].weights.size(), 4u);
  check_network(network, x);  // the float64 copy knows the layer as it is now
}

TEST(Metacognition, CooldownCountsForwards) {
  Network network = random_network(layer_list(metacognition(dense(2, 2), {rule(kAlways, -1, kToInt8, kInt8, 2)})));
  const Tensor<float> x = random_tensor({1, 2}, 5);
  std::vector<int> fired;
  for (int call = 1; call <= 9; ++call) {
    LayerConfig& observed = network.layers()[0].observed->config;
    observed.dtype = DType::float32;
    network.forward(x);
    if (observed.dtype == DType::int8) fired.push_back(call);
  }
  EXPECT_EQ(fired, (std::vector<int>{3, 6, 9}));
}

TEST(Metacognition, AConditionThatFailsDoesNotStartTheCooldownAgain) {
  // Fires when the deviation is above 1, and rests for two forwards first.
  Network network = random_network(layer_list(metacognition(dense(2, 2), {rule(1, 1, kToInt8, kInt8, 2)})));
  network.layers()[0].observed->weights->set_master(std::vector<float>{1, 0, 0, 1});
  const Tensor<float> calm(Shape{1, 2}, {0.5f, 0.5f}), wild(Shape{1, 2}, {-5, 5});
  const auto dtype = [&] { return std::as_const(network).layers()[0].observed->config.dtype; };
  for (int call = 0; call < 3; ++call) network.forward(calm);
  EXPECT_EQ(dtype(), DType::float32);
  network.forward(wild);
  EXPECT_EQ(dtype(), DType::int8);
}

TEST(Metacognition, RulesSeeTheHistoryOfInputs) {
  Network network = random_network(layer_list(metacognition(dense(2, 2), {rule(7, 2, kToInt8, kInt8)})));
  const auto forward = [&](float size) {
    network.forward(Tensor<float>(Shape{1, 2}, {-size, size}));
    return std::as_const(network).layers()[0].observed->config.dtype;
  };
  EXPECT_EQ(forward(1), DType::float32);
  EXPECT_EQ(forward(9), DType::float32);     // only two entries
  EXPECT_EQ(forward(1.9f), DType::float32);  // 1.9 times the one two before
  EXPECT_EQ(forward(20), DType::int8);
}

TEST(Metacognition, OtherLayersAreTargetsByColumn) {
  Network network(1, 1, 3, 1);
  for (Layer& layer : network.layers()) {
    const Coordinates at = layer.at;
    layer = dense(3, 3);
    layer.at = at;
  }
  network.at({0, 0, 0, 0}) = metacognition(dense(3, 3), {rule(kAlways, -1, 90, 2.7f, 0, false)});
  network.at({0, 0, 2, 0}) = metacognition(dense(3, 3), {});
  network.at({0, 0, 2, 0}).at = {0, 0, 2, 0};
  network.initialize(1);
  network.forward(random_tensor({1, 3}, 6));
  EXPECT_EQ(network.at({0, 0, 0, 0}).observed->config.type, LayerType::dense);
  EXPECT_EQ(network.at({0, 0, 1, 0}).config.type, LayerType::dense);
  EXPECT_EQ(network.at({0, 0, 2, 0}).observed->config.type, LayerType::rms_norm);
  network.at({0, 0, 0, 0}).rules[0].param = 3;
  EXPECT_THROW(network.forward(random_tensor({1, 3}, 6)), UsageError);
}

TEST(Metacognition, BackwardThroughALayerThatWasChangedAfterItRanIsAnError) {
  Network network(1, 1, 2, 1);
  network.at({0, 0, 0, 0}) = dense(3, 3);
  network.at({0, 0, 1, 0}) = metacognition(dense(3, 3), {rule(kAlways, -1, 90, 0, 0, false)});
  network.initialize(1);
  network.forward_training(random_tensor({2, 3}, 7));
  EXPECT_THROW(network.backward(random_tensor({2, 3}, 8)), UsageError);
  network.forward_training(random_tensor({2, 3}, 7));  // now it runs as what it is
  EXPECT_NO_THROW(network.backward(random_tensor({2, 3}, 8)));
}

TEST(Metacognition, AContainerIsNotReplacedWhileItRuns) {
  Network network = random_network(layer_list(
      sequential(layer_list(metacognition(dense(3, 3), {rule(kAlways, -1, 90, 0, 0, false)}), dense(3, 2)))));
  network.forward(random_tensor({2, 3}, 9));
  EXPECT_EQ(std::as_const(network).layers()[0].config.type, LayerType::sequential);
}

TEST(Metacognition, MetaNetworkSources) {
  const Tensor<float> x = random_tensor({1, 60}, 10);
  const auto shown = [&](const std::string& source, std::size_t inputs, int forwards) {
    Layer layer = metacognition(dense(60, 60), {});
    layer.config.meta_source = source;
    layer.config.meta_effect = "intervention";
    Network network = random_network(layer_list(std::move(layer)));
    network.layers()[0].meta_network = showing_network(inputs, 1);
    Tensor<float> scaled = x;
    for (int i = 1; i < forwards; ++i)
      network.forward(Tensor<float>(Shape{1, 60}, std::vector<float>(60, static_cast<float>(i))));
    const std::span<const float> post = network.forward(scaled).values();
    return std::vector<float>(post.begin(), post.end());
  };
  double sum = 0, squares = 0, largest = -9, smallest = 9;
  for (const float value : x.values()) {
    sum += value;
    squares += static_cast<double>(value) * value;
    largest = std::max<double>(largest, value);
    smallest = std::min<double>(smallest, value);
  }
  const double average = sum / 60, deviation = std::sqrt(squares / 60 - average * average);
  const std::vector<double> stats = {average, deviation, largest, smallest, 60};

  const std::vector<float> of_stats = shown("stats", 6, 1);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(of_stats[i], stats[i], 1e-5) << i;
  EXPECT_EQ(of_stats[5], 1);
  for (std::size_t i = 6; i < 60; ++i) EXPECT_EQ(of_stats[i], 0) << i;

  const std::vector<float> of_history = shown("history", 51, 3);  // constant 1, constant 2, then x
  EXPECT_FLOAT_EQ(of_history[0], 1);
  EXPECT_FLOAT_EQ(of_history[5], 2);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(of_history[10 + i], stats[i], 1e-5) << i;
  for (std::size_t i = 15; i < 50; ++i) EXPECT_EQ(of_history[i], 0) << i;
  EXPECT_EQ(of_history[50], 1);
  const std::vector<float> full = shown("history", 51, 130);  // 120 … 129, then x
  EXPECT_FLOAT_EQ(full[0], 121);
  EXPECT_NEAR(full[45], average, 1e-5);

  const std::vector<float> of_activations = shown("activations", 61, 1);
  for (std::size_t i = 0; i < 60; ++i) EXPECT_FLOAT_EQ(of_activations[i], x[i]);
}

TEST(Metacognition, MetaNetworkMayReadTheInputItself) {
  Layer layer = metacognition(dense(4, 4), {});
  layer.config.meta_source = "input";
  layer.config.meta_effect = "intervention";
  Network network = random_network(layer_list(std::move(layer)));
  network.layers()[0].meta_network = showing_network(4, 1);
  const Tensor<float> loud(Shape{1, 4}, {0.1f, 0.2f, 0.3f, 0.9f}), quiet(Shape{1, 4}, {0.1f, 0.2f, 0.3f, 0.4f});
  EXPECT_TRUE(std::ranges::equal(network.forward(loud).values(), loud.values()));
  const std::vector<float> untouched = observed_result(network, quiet);  // m0 = 0.4 is not above 0.5
  const std::span<const float> got = network.forward(quiet).values();
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(got[i], untouched[i], 1e-5);
}

TEST(Metacognition, MetaNetworkEffects) {
  const Tensor<float> x = random_tensor({2, 4}, 11);
  Network gate = network_with_answer("gate", {0.8f});
  const std::vector<float> base = observed_result(gate, x);
  const std::span<const float> gated = gate.forward(x).values();
  for (std::size_t i = 0; i < 8; ++i) EXPECT_NEAR(gated[i], base[i] / (1 + std::exp(-0.8)), 1e-6);

  Network noise = network_with_answer("noise", {0.25f});
  noise.set_run_seed(7);
  const Tensor<float> first = noise.forward(x), second = noise.forward(x);
  noise.set_run_seed(7);
  EXPECT_TRUE(std::ranges::equal(noise.forward(x).values(), first.values()));
  float widest = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    widest = std::max(widest, std::abs(first[i] - base[i]));
    EXPECT_NE(first[i], second[i]);
  }
  EXPECT_LE(widest, 0.2501f);
  EXPECT_GT(widest, 0.05f);

  for (auto& [effect, answer] : {std::pair{"noise", -1.0f}, {"intervention", 0.5f}, {"", 3.0f}, {"dream", 3.0f}}) {
    Network unchanged = network_with_answer(effect, {answer});
    const std::span<const float> got = unchanged.forward(x).values();
    for (std::size_t i = 0; i < 8; ++i) EXPECT_NEAR(got[i], base[i], 1e-6) << effect;
  }
}

TEST(Metacognition, MetaNetworkMayGiveCommands) {
  Network network = network_with_answer("autonomous_command", {12, 0, 0, 90, 0, 0});
  network.forward_training(random_tensor({2, 4}, 12));
  EXPECT_EQ(std::as_const(network).layers()[0].observed->config.type, LayerType::rms_norm);
  EXPECT_NO_THROW(network.backward(random_tensor({2, 4}, 13)));
}

TEST(Metacognition, BackwardIsThatOfTheObservedLayer) {
  Network network = network_with_answer("intervention", {1, 5, 5, 5});
  testing::WideNetwork wide(network);
  testing::Wide x = testing::widen(random_tensor({1, 4}, 14));
  network.forward_training(random_tensor({1, 4}, 14));
  const Tensor<float> r = random_tensor({1, 4}, 15);
  const Tensor<float>& grad = network.backward(r);
  testing::expect_close(grad.values(),
                        testing::differences(x.values, [&] { return testing::weighted(wide.run(x).values, r); }), 2e-5,
                        "input");
}

TEST(Metacognition, GivesWhatTheOriginalGives) {
  const nlohmann::json reference = testing::loom_reference("metacognition_float32");
  Network network(layer_list(metacognition(dense(4, 4, Activation::tanh), {rule(1, 1e6, 90, 0, 5)})));
  testing::set_loom_weights(*network.layers()[0].observed, reference, 0);
  const Tensor<float> wanted = testing::loom_tensor(reference, "output");
  const Tensor<float>& got = network.forward(testing::loom_tensor(reference, "input"));
  ASSERT_EQ(got.shape(), wanted.shape());
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 2e-6 + 2e-5 * std::abs(wanted[i]));
}

}  // namespace
}  // namespace imago
