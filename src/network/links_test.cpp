// Remote links: weights that are used in several places.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "imago/error.h"
#include "imago/network.h"
#include "testing/wide_network.h"

namespace imago {
namespace {

using testing::check_network;
using testing::random_network;
using testing::random_tensor;

Layer link(int l) { return remote_link({0, 0, 0, l}); }

std::string error_of(std::vector<Layer> layers) {
  try {
    Network network(std::move(layers));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Links, GradientsOfSharedWeightsMeetInTheTarget) {
  // The weights of layer 1 are used four times: before, in place, after, and twice in a row.
  Network network = random_network(layer_list(parallel("add", layer_list(link(1), dense(3, 3, Activation::tanh))),
                                              dense(3, 3, Activation::tanh),
                                              sequential(layer_list(link(1), residual(), link(1), rms_norm(3)))));
  check_network(network, random_tensor({4, 3}, 1));
  EXPECT_TRUE(network.gradients()[0].children[0].weights.empty());
  EXPECT_FALSE(network.gradients()[1].weights.empty());
}

TEST(Links, TargetsMayBeContainersWithLinks) {
  Network network = random_network(
      layer_list(dense(3, 3, Activation::tanh), sequential(layer_list(link(0), residual())),
                 mixture(dense(3, 2), layer_list(link(1), parallel("avg", layer_list(link(1), link(0)))))));
  check_network(network, random_tensor({3, 3}, 2));
}

TEST(Links, ALinkToAResidualUsesTheSkip) {
  Network network =
      random_network(layer_list(residual(), sequential(layer_list(dense(3, 3, Activation::tanh), link(0)))));
  check_network(network, random_tensor({2, 3}, 3));
}

TEST(Links, DisabledLinksAndTargetsPassTheirInput) {
  std::vector<Layer> steps = layer_list(link(0), dense(3, 3, Activation::tanh), link(1));
  steps[0].config.is_disabled = true;
  std::vector<Layer> layers = layer_list(dense(3, 3), dense(3, 3, Activation::tanh), sequential(std::move(steps)),
                                         parallel("concat", layer_list(link(1), dense(3, 2))));
  layers[1].config.is_disabled = true;
  Network network = random_network(std::move(layers));
  check_network(network, random_tensor({2, 3}, 4));
}

TEST(Links, OnGridLayersAreIgnoredByForward) {
  Network network = random_network(layer_list(dense(3, 3, Activation::tanh), dense(3, 3, Activation::tanh)));
  network.layers()[1].config.is_remote_link = true;
  network.layers()[1].config.target = {0, 0, 0, 1};  // itself: no matter outside the mesh
  check_network(network, random_tensor({2, 3}, 5));
}

TEST(Links, OutsideTheGridAreErrors) {
  EXPECT_EQ(
      error_of(layer_list(dense(3, 3), sequential(layer_list(dense(3, 3), link(7))))),
      "layer (0,0,0,1), Sequential: its remote link leads nowhere; no layer at (0,0,0,7): the grid is 1 x 1 x 1 x 2");
  std::vector<Layer> layers = layer_list(dense(3, 3));
  layers[0].config.is_remote_link = true;
  layers[0].config.target = {1, 0, 0, 0};
  EXPECT_NE(error_of(std::move(layers)), "");
}

TEST(Links, CirclesAreErrors) {
  EXPECT_EQ(error_of(layer_list(sequential(layer_list(link(0))))),
            "remote links run in a circle: (0,0,0,0) -> (0,0,0,0)");
  EXPECT_EQ(error_of(layer_list(dense(3, 3), sequential(layer_list(dense(3, 3), parallel("add", layer_list(link(2))))),
                                parallel("add", layer_list(link(0), link(3))), sequential(layer_list(link(1))))),
            "remote links run in a circle: (0,0,0,1) -> (0,0,0,2) -> (0,0,0,3) -> (0,0,0,1)");
}

TEST(Links, ACircleMadeLaterIsFoundByForward) {
  Network network = random_network(layer_list(dense(3, 3), sequential(layer_list(link(0)))));
  const Tensor<float> x = random_tensor({1, 3}, 6);
  network.forward(x);
  network.layers()[1].sub_layers[0].config.target = {0, 0, 0, 1};
  EXPECT_THROW(network.forward(x), UsageError);
  EXPECT_THROW(network.forward_training(x), UsageError);
}

TEST(Links, SharedLinksCannotExplode) {
  std::vector<Layer> layers = layer_list(dense(3, 3));
  for (int i = 0; i < 40; ++i) layers.push_back(parallel("add", layer_list(link(i), link(i))));
  EXPECT_NE(error_of(std::move(layers)).find("more than 1000000 layers"), std::string::npos);
}

TEST(Links, DepthIsBounded) {
  Layer nest = dense(2, 2);
  for (int i = 0; i < 98; ++i) nest = sequential(layer_list(std::move(nest)));
  Network deep(layer_list(std::move(nest)));
  EXPECT_EQ(deep.forward(random_tensor({1, 2}, 7)).size(), 2u);
  for (int i = 0; i < 2; ++i) deep.layers()[0] = sequential(layer_list(std::move(deep.layers()[0])));
  EXPECT_THROW(deep.check(), UsageError);
  std::vector<Layer> chain = layer_list(dense(2, 2));
  for (int i = 0; i < 150; ++i) chain.push_back(sequential(layer_list(link(i))));
  EXPECT_NE(error_of(std::move(chain)).find("layers are nested more than 100 deep"), std::string::npos);
}

TEST(Links, GatesAndObservedLayersAreNoLinks) {
  EXPECT_NE(error_of(layer_list(dense(3, 2), mixture(link(0), layer_list(dense(3, 3), dense(3, 3))))), "");
  EXPECT_NE(error_of(layer_list(dense(3, 3), metacognition(link(0), {}))), "");
}

}  // namespace
}  // namespace imago
