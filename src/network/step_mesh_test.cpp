#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "imago/error.h"
#include "imago/network.h"
#include "testing/wide_network.h"

namespace imago {
namespace {

using testing::random_network;
using testing::random_tensor;
using testing::Wide;
using testing::WideNetwork;

/// The mesh in float64: where each layer of each tick reads is a table made beforehand.
using Sources = std::vector<std::vector<int>>;  // [tick][layer], -1: external

Wide unrolled(const WideNetwork& wide, const Network& network, const Sources& sources, const Wide& external) {
  std::vector<std::optional<Wide>> out(network.layers().size());
  for (const std::vector<int>& tick : sources) {
    std::vector<std::optional<Wide>> next = out;
    for (std::size_t i = 0; i < tick.size(); ++i) {
      const std::optional<Wide> input = tick[i] < 0 ? std::optional(external) : out[static_cast<std::size_t>(tick[i])];
      if (!input) continue;
      const Layer& layer = network.layers()[i];
      next[i] = layer.config.is_disabled ? *input : wide.run_layer(layer, *input, nullptr);
    }
    out = std::move(next);
  }
  return *out.back();
}

TEST(StepMesh, ASignalNeedsOneTickPerLayer) {
  Network network =
      random_network(layer_list(dense(3, 4, Activation::tanh), dense(4, 4), dense(4, 2, Activation::tanh)));
  const Tensor<float> x = random_tensor({2, 3}, 1);
  const Tensor<float> expected = network.forward(x);
  StepMesh mesh(network);
  mesh.step_forward();  // without input nothing happens
  EXPECT_EQ(mesh.output(0), nullptr);
  mesh.set_input(x);
  for (std::size_t tick = 0; tick < 5; ++tick) {
    mesh.step_forward();
    EXPECT_EQ(mesh.ticks(), tick + 2);
    for (std::size_t layer = 0; layer < 3; ++layer) EXPECT_EQ(mesh.output(layer) != nullptr, layer <= tick);
  }
  EXPECT_TRUE(std::ranges::equal(mesh.output(2)->values(), expected.values()));
  EXPECT_THROW(mesh.output(3), UsageError);
}

TEST(StepMesh, InputIsHeldUntilReplaced) {
  Network network = random_network(layer_list(dense(2, 2), dense(2, 2)));
  const Tensor<float> a = random_tensor({1, 2}, 2), b = random_tensor({1, 2}, 3);
  const Tensor<float> of_a = network.forward(a), of_b = network.forward(b);
  StepMesh mesh(network);
  mesh.set_input(a);
  for (int i = 0; i < 3; ++i) mesh.step_forward();
  mesh.set_input(b);
  mesh.step_forward();  // layer 0 reads b, layer 1 still what layer 0 made of a
  EXPECT_TRUE(std::ranges::equal(mesh.output(1)->values(), of_a.values()));
  mesh.step_forward();
  EXPECT_TRUE(std::ranges::equal(mesh.output(1)->values(), of_b.values()));
}

TEST(StepMesh, LinksReadThePreviousOutputOfTheirTarget) {
  Network network = random_network(layer_list(dense(2, 2, Activation::tanh), dense(2, 2, Activation::tanh),
                                              dense(2, 2, Activation::tanh), dense(2, 2)));
  network.layers()[2].config.is_remote_link = true;  // past layer 1
  network.layers()[2].config.target = {0, 0, 0, 0};
  network.layers()[3].config.is_disabled = true;
  const Tensor<float> x = random_tensor({1, 2}, 4);
  StepMesh mesh(network);
  mesh.set_input(x);
  mesh.step_forward();
  EXPECT_EQ(mesh.output(2), nullptr);
  mesh.step_forward();
  ASSERT_NE(mesh.output(2), nullptr);
  EXPECT_EQ(mesh.output(3), nullptr);
  mesh.step_forward();
  WideNetwork wide(network);
  const Sources sources(3, {-1, 0, 0, 2});
  testing::expect_close(mesh.output(3)->values(), unrolled(wide, network, sources, testing::widen(x)).values, 1e-5,
                        "out");
}

TEST(StepMesh, BackwardGoesThroughTime) {
  // Three ticks fill the chain; then layer 1 reads layer 2: a loop that lives on without the input.
  Network network = random_network(
      layer_list(dense(3, 3, Activation::tanh), dense(3, 3, Activation::tanh), dense(3, 3, Activation::tanh),
                 parallel("add", layer_list(dense(3, 2), remote_link({0, 0, 0, 4}))), dense(3, 2, Activation::tanh)));
  network.layers()[4].config.is_remote_link = true;
  network.layers()[4].config.target = {0, 0, 0, 2};
  Sources sources(4, {-1, 0, 1, 2, 2});
  const Tensor<float> x = random_tensor({2, 3}, 5);
  StepMesh mesh(network, true);
  mesh.set_input(x);
  for (int i = 0; i < 4; ++i) mesh.step_forward();
  network.layers()[1].config.is_remote_link = true;
  network.layers()[1].config.target = {0, 0, 0, 2};
  for (int i = 0; i < 4; ++i) {
    mesh.step_forward();
    sources.push_back({-1, 2, 1, 2, 2});
  }

  WideNetwork wide(network);
  Wide wide_x = testing::widen(x);
  const auto run = [&] { return unrolled(wide, network, sources, wide_x).values; };
  testing::expect_close(mesh.output(4)->values(), run(), 1e-5, "out");
  const Tensor<float> r = random_tensor({2, 2}, 6);
  const StepMesh::Gradients gradients = mesh.step_backward(r);
  const auto loss = [&] { return testing::weighted(run(), r); };
  testing::expect_close(gradients.input.values(), testing::differences(wide_x.values, loss), 2e-5, "input");
  testing::expect_weight_gradients(std::as_const(network).layers(), gradients.weights, wide, loss);
  const StepMesh::Gradients again = mesh.step_backward(r);
  EXPECT_EQ(again.weights[1].weights, gradients.weights[1].weights);
}

TEST(StepMesh, GradientsOfLinksInsideContainersGoToTheMesh) {
  Network network = random_network(
      layer_list(dense(3, 3, Activation::tanh), sequential(layer_list(remote_link({0, 0, 0, 0}), residual()))));
  const Tensor<float> x = random_tensor({2, 3}, 7);
  StepMesh mesh(network, true);
  mesh.set_input(x);
  for (int i = 0; i < 3; ++i) mesh.step_forward();
  WideNetwork wide(network);
  Wide wide_x = testing::widen(x);
  const Sources sources(3, {-1, 0});
  const Tensor<float> r = random_tensor({2, 3}, 8);
  const StepMesh::Gradients gradients = mesh.step_backward(r);
  const auto loss = [&] { return testing::weighted(unrolled(wide, network, sources, wide_x).values, r); };
  testing::expect_close(gradients.input.values(), testing::differences(wide_x.values, loss), 2e-5, "input");
  testing::expect_weight_gradients(std::as_const(network).layers(), gradients.weights, wide, loss);
  EXPECT_TRUE(network.gradients()[0].weights.empty());  // the network's own are left alone
}

TEST(StepMesh, DisabledLayersPassGradientsOn) {
  Network network = random_network(layer_list(dense(2, 2, Activation::tanh), dense(2, 2), dense(2, 2)));
  network.layers()[1].config.is_disabled = true;
  const Tensor<float> x = random_tensor({1, 2}, 9);
  StepMesh mesh(network, true);
  mesh.set_input(x);
  for (int i = 0; i < 4; ++i) mesh.step_forward();
  WideNetwork wide(network);
  Wide wide_x = testing::widen(x);
  const Sources sources(4, {-1, 0, 1});
  const Tensor<float> r = random_tensor({1, 2}, 10);
  const StepMesh::Gradients gradients = mesh.step_backward(r);
  const auto loss = [&] { return testing::weighted(unrolled(wide, network, sources, wide_x).values, r); };
  testing::expect_close(gradients.input.values(), testing::differences(wide_x.values, loss), 2e-5, "input");
  testing::expect_close(gradients.weights[0].weights, testing::differences(wide.weights(network.layers()[0]), loss),
                        2e-5, "w");
}

TEST(StepMesh, CooldownsCountTicks) {
  const MetaRule rule{5, -1, 99, 9, 2, true};
  Network network = random_network(layer_list(metacognition(dense(2, 2), {rule})));
  StepMesh mesh(network, true);
  mesh.set_input(random_tensor({1, 2}, 11));
  const auto dtype = [&] { return std::as_const(network).layers()[0].observed->config.dtype; };
  mesh.step_forward();
  mesh.step_forward();
  EXPECT_EQ(dtype(), DType::float32);
  mesh.step_forward();
  EXPECT_EQ(dtype(), DType::int8);
}

TEST(StepMesh, SaysWhatBackwardLacks) {
  Network network = random_network(layer_list(dense(2, 2), dense(2, 2)));
  const Tensor<float> g = random_tensor({1, 2}, 12);
  StepMesh forgetful(network);
  forgetful.set_input(g);
  forgetful.step_forward();
  EXPECT_THROW(forgetful.step_backward(g), UsageError);
  StepMesh mesh(network, true);
  mesh.set_input(g);
  mesh.step_forward();
  EXPECT_THROW(mesh.step_backward(g), UsageError);  // the last layer has no output yet
  mesh.step_forward();
  EXPECT_THROW(mesh.step_backward(random_tensor({2, 2}, 13)), ShapeError);
  EXPECT_NO_THROW(mesh.step_backward(g));
}

}  // namespace
}  // namespace imago
