#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "imago/network.h"
#include "testing/loom.h"
#include "testing/wide_network.h"

namespace imago {
namespace {

using testing::check_network;
using testing::random_network;
using testing::random_tensor;

TEST(Sequential, RunsLayersInOrderInBothDirections) {
  Network network = random_network(
      layer_list(sequential(layer_list(dense(3, 5, Activation::tanh), dense(5, 4), dense(4, 2, Activation::tanh)))));
  check_network(network, random_tensor({4, 3}, 1));
}

TEST(Sequential, ResidualAddsTheInputOfTheLayerBefore) {
  Network network = random_network(layer_list(sequential(layer_list(dense(3, 3, Activation::tanh), residual()))));
  check_network(network, random_tensor({2, 3}, 2));
}

TEST(Sequential, SkipGradientsGoToTheInputOfTheLayerBefore) {
  // The second residual's skip is the input of the first dense pair's output; a norm at the end makes errors visible.
  Network network = random_network(layer_list(sequential(layer_list(
      dense(4, 4, Activation::tanh), residual(), dense(4, 4, Activation::tanh), residual(), residual(), rms_norm(4)))));
  check_network(network, random_tensor({3, 4}, 3));
}

TEST(Sequential, ResidualFirstOrOfAnotherSizeIsTheIdentity) {
  Network network =
      random_network(layer_list(sequential(layer_list(residual(), dense(3, 5, Activation::tanh), residual()))));
  check_network(network, random_tensor({2, 3}, 4));
}

TEST(Sequential, SkipComesFromLayersThatRan) {
  std::vector<Layer> layers =
      layer_list(dense(3, 3, Activation::tanh), dense(3, 7), residual(), dense(3, 3, Activation::tanh), residual());
  layers[1].config.is_disabled = true;
  layers[3].config.is_disabled = true;
  Network network = random_network(layer_list(sequential(std::move(layers))));
  check_network(network, random_tensor({2, 3}, 5));
}

TEST(Sequential, WithoutLayersThatRunIsTheIdentity) {
  std::vector<Layer> off = layer_list(dense(3, 2));
  off[0].config.is_disabled = true;
  Network network(layer_list(sequential({}), sequential(std::move(off))));
  const Tensor<float> x = random_tensor({2, 3}, 6);
  EXPECT_TRUE(std::ranges::equal(network.forward_training(x).values(), x.values()));
  EXPECT_TRUE(std::ranges::equal(network.backward(x).values(), x.values()));
}

TEST(Containers, NestFourDeep) {
  Layer inner = sequential(layer_list(dense(3, 3, Activation::tanh), residual()));
  Layer third = parallel("add", layer_list(std::move(inner), dense(3, 3, Activation::sigmoid)));
  Layer second = sequential(layer_list(std::move(third), residual(), rms_norm(3)));
  Layer first = mixture(sequential(layer_list(dense(3, 4, Activation::tanh), dense(4, 2))),
                        layer_list(std::move(second), dense(3, 3, Activation::tanh)));
  Network network =
      random_network(layer_list(dense(2, 3), parallel("concat", layer_list(std::move(first), dense(3, 1)))));
  check_network(network, random_tensor({5, 2}, 7));
}

/// Dense 4 -> 4 with tanh, Residual, RMSNorm.
TEST(Sequential, GivesWhatTheOriginalGives) {
  const nlohmann::json reference = testing::loom_reference("sequential_float32");
  Network network(layer_list(sequential(layer_list(dense(4, 4, Activation::tanh), residual(), rms_norm(4)))));
  testing::set_loom_weights(network.layers()[0].sub_layers[0], reference, 0);
  testing::set_loom_weights(network.layers()[0].sub_layers[2], reference, 1);
  const Tensor<float> wanted = testing::loom_tensor(reference, "output");
  const Tensor<float>& got = network.forward(testing::loom_tensor(reference, "input"));
  ASSERT_EQ(got.shape(), wanted.shape());
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 2e-6 + 2e-5 * std::abs(wanted[i]));
}

}  // namespace
}  // namespace imago
