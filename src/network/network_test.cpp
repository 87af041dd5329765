#include "imago/network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "imago/error.h"
#include "testing/wide_network.h"

namespace imago {
namespace {

using testing::check_network;
using testing::random_network;
using testing::random_tensor;

TEST(Network, ANewGridIsDenseReluFloat32WithoutWeights) {
  Network network(2, 3, 2, 2);
  EXPECT_EQ(network.layers().size(), 24u);
  std::size_t index = 0;
  for (int z = 0; z < 2; ++z) {
    for (int y = 0; y < 3; ++y) {
      for (int x = 0; x < 2; ++x) {
        for (int l = 0; l < 2; ++l, ++index) {
          EXPECT_EQ(network.index({z, y, x, l}), index);
          EXPECT_EQ(network.layers()[index].at, (Coordinates{z, y, x, l}));
        }
      }
    }
  }
  const Layer& layer = network.at({1, 2, 1, 1});
  EXPECT_EQ(layer.config.type, LayerType::dense);
  EXPECT_EQ(layer.config.activation, Activation::relu);
  EXPECT_EQ(layer.config.dtype, DType::float32);
  EXPECT_FALSE(layer.config.is_disabled);
  EXPECT_FALSE(layer.weights);
  EXPECT_EQ(network.parameters(), 0u);
}

TEST(Network, RefusesSizesThatMakeNoGrid) {
  EXPECT_THROW(Network(0, 1, 1, 1), UsageError);
  EXPECT_THROW(Network(1, 1, -1, 1), UsageError);
  constexpr int kHuge = std::numeric_limits<int>::max();
  EXPECT_THROW(Network(kHuge, kHuge, kHuge, kHuge), ShapeError);
  EXPECT_THROW(Network(std::vector<Layer>()), UsageError);
}

TEST(Network, PlacesOutsideTheGridAreErrors) {
  Network network(1, 2, 3, 4);
  EXPECT_THROW(network.index({0, 2, 0, 0}), UsageError);
  EXPECT_THROW(network.index({0, 0, 0, -1}), UsageError);
  try {
    network.at({0, 0, 3, 1});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "no layer at (0,0,3,1): the grid is 1 x 2 x 3 x 4");
  }
}

TEST(Network, WeightsComeFromTheSeed) {
  const auto weights = [](std::uint64_t seed, std::size_t layer) {
    Layer meta = metacognition(dense(3, 3), {});
    meta.meta_network = std::make_unique<Network>(layer_list(dense(3, 1)));
    Network network(layer_list(dense(3, 3), dense(3, 3), std::move(meta)), seed);
    const Layer& chosen = network.layers()[layer];
    const Layer& owner = layer == 2 ? chosen.meta_network->layers()[0] : chosen;
    return std::vector<float>(owner.weights->master().begin(), owner.weights->master().end());
  };
  EXPECT_EQ(weights(1, 0), weights(1, 0));
  EXPECT_NE(weights(1, 0), weights(2, 0));
  EXPECT_NE(weights(1, 0), weights(1, 1));
  EXPECT_EQ(weights(1, 2), weights(1, 2));
  EXPECT_NE(weights(1, 2), weights(2, 2));
}

TEST(Network, CountsTheWeightsOfInnerLayers) {
  Layer meta = metacognition(dense(4, 4), {});
  meta.meta_network = std::make_unique<Network>(layer_list(dense(6, 1)));
  Network network(layer_list(sequential(layer_list(dense(3, 4), residual(), rms_norm(4))),
                             mixture(dense(4, 2), layer_list(dense(4, 4), dense(4, 4))), std::move(meta)));
  EXPECT_EQ(network.parameters(), 12u + 4 + 8 + 16 + 16 + 16 + 6);
}

TEST(Network, RunsTheGridInTheOrderOfItsIndices) {
  Network network(2, 3, 2, 2);
  std::uint64_t seed = 0;
  for (Layer& layer : network.layers()) {
    const Coordinates at = layer.at;
    layer = dense(3, 3, Activation::tanh);
    layer.at = at;
    testing::randomize_layer(layer, ++seed, 1.2f);
  }
  network.at({0, 1, 0, 1}).config.is_disabled = true;
  network.at({0, 0, 0, 0}).config.is_disabled = true;
  network.at({1, 2, 1, 1}).config.is_disabled = true;
  const Tensor<float> x = random_tensor({2, 3}, 1);
  check_network(network, x);

  testing::WideNetwork wide(network);
  testing::Wide expected = testing::widen(x);
  for (int z = 0; z < 2; ++z) {
    for (int y = 0; y < 3; ++y) {
      for (int column = 0; column < 2; ++column) {
        for (int l = 0; l < 2; ++l) {
          const Layer& layer = network.at({z, y, column, l});
          if (!layer.config.is_disabled) expected = wide.run_layer(layer, expected, nullptr);
        }
      }
    }
  }
  testing::expect_close(network.forward(x).values(), expected.values, 1e-5, "result");
}

TEST(Network, DisabledCellsNeedNoSettings) {
  Network network(1, 1, 2, 1);
  network.at({0, 0, 0, 0}).config.is_disabled = true;
  network.at({0, 0, 1, 0}) = dense(2, 2);
  network.initialize(3);
  EXPECT_EQ(network.parameters(), 4u);
  EXPECT_EQ(network.forward(random_tensor({1, 2}, 2)).size(), 2u);
}

TEST(Network, WithoutEnabledLayersIsTheIdentity) {
  Network network(1, 1, 1, 2);
  for (Layer& layer : network.layers()) layer.config.is_disabled = true;
  const Tensor<float> x = random_tensor({2, 2}, 3);
  EXPECT_TRUE(std::ranges::equal(network.forward_training(x).values(), x.values()));
  EXPECT_TRUE(std::ranges::equal(network.backward(x).values(), x.values()));
}

TEST(Network, ResidualInTheGridHasNoSkip) {
  Network network = random_network(layer_list(dense(3, 3, Activation::tanh), residual()));
  check_network(network, random_tensor({2, 3}, 4));
}

TEST(Network, GradientsAddUpUntilCleared) {
  Network network = random_network(layer_list(dense(2, 2)));
  const Tensor<float> x = random_tensor({3, 2}, 5), g = random_tensor({3, 2}, 6);
  network.forward_training(x);
  network.backward(g);
  const std::vector<float> once = network.gradients()[0].weights;
  network.backward(g);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(network.gradients()[0].weights[i], 2 * once[i]);
  network.clear_gradients();
  EXPECT_EQ(network.gradients()[0].weights, std::vector<float>(4));
}

TEST(Network, GradientsOfWeightsNeedNoneOfTheInput) {
  const ConvolutionShape plane{.channels = 1, .filters = 2, .kernel = 3, .padding = 1, .height = 4};
  for (const bool convolves : {false, true}) {
    Network network = random_network(convolves ? layer_list(convolution(2, plane, Activation::tanh), dense(32, 2))
                                               : layer_list(dense(16, 32, Activation::tanh), dense(32, 2)));
    const Tensor<float> x = random_tensor({3, 1, 4, 4}, 15), g = random_tensor({3, 2}, 16);
    const Tensor<float> flat = convolves ? x : x.reshaped({3, 16});
    network.forward_training(flat);
    const Tensor<float> with_input = network.backward(g);
    const std::vector<float> first = network.gradients()[0].weights, second = network.gradients()[1].weights;
    network.clear_gradients();
    network.backward(g, false);
    EXPECT_EQ(network.gradients()[0].weights, first);
    EXPECT_EQ(network.gradients()[1].weights, second);
    EXPECT_TRUE(std::ranges::equal(network.backward(g).values(), with_input.values())) << "asked for again";
  }
}

TEST(Network, QuantizedLayersAreTrainedStraightThrough) {
  Network network = random_network(layer_list(with_dtype(dense(4, 4, Activation::tanh), DType::int4), dense(4, 2)));
  check_network(network, random_tensor({3, 4}, 7));  // float64 computes with decoded weights
}

TEST(Network, RunSeedFixesWhatIsDrawn) {
  Network network(layer_list(softmax(SoftmaxType::gumbel)));
  const Tensor<float> x = random_tensor({2, 5}, 8);
  network.set_run_seed(3);
  const Tensor<float> first = network.forward(x), second = network.forward(x);
  network.set_run_seed(3);
  EXPECT_TRUE(std::ranges::equal(network.forward(x).values(), first.values()));
  EXPECT_FALSE(std::ranges::equal(first.values(), second.values()));
}

TEST(Network, MayBeFedItsOwnResult) {
  // Each forward makes two tokens of one, so that the result outgrows the memory that it is read from.
  Network network(layer_list(embedding(4, 2)));
  network.layers()[0].weights->set_master(std::vector<float>{1, 2, 3, 0, 2, 2, 0, 1});
  const Tensor<float> x(Shape{2}, {3, 1});
  const Tensor<float> once = network.forward(x);
  EXPECT_TRUE(std::ranges::equal(once.values(), std::vector<float>{0, 1, 3, 0}));
  const std::vector<float> twice = {1, 2, 3, 0, 0, 1, 1, 2};
  EXPECT_TRUE(std::ranges::equal(network.forward(network.forward(x)).values(), twice));
}

TEST(Network, MovesWithItsState) {
  Network first =
      random_network(layer_list(sequential(layer_list(remote_link({0, 0, 0, 1}))), dense(3, 3, Activation::tanh)));
  const Tensor<float> x = random_tensor({2, 3}, 10);
  const Tensor<float> expected = first.forward(x);
  Network second = std::move(first);
  EXPECT_TRUE(std::ranges::equal(second.forward(x).values(), expected.values()));
}

TEST(Network, ErrorsNameTheLayer) {
  const auto error_of = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  Network unset(1, 1, 2, 1);
  EXPECT_NE(error_of([&] {
              unset.forward(random_tensor({1, 2}, 11));
            }).find("layer (0,0,0,0), Dense"),
            std::string::npos);
  Network network = random_network(layer_list(dense(3, 3), dense(3, 2)));
  EXPECT_NE(error_of([&] {
              network.forward(random_tensor({1, 4}, 12));
            }).find("layer (0,0,0,0), Dense"),
            std::string::npos);
  network.layers()[1].weights.reset();
  EXPECT_NE(error_of([&] {
              network.forward(random_tensor({1, 3}, 12));
            }).find("layer (0,0,0,1), Dense"),
            std::string::npos);
  network.layers()[1].weights.emplace(7);
  EXPECT_NE(error_of([&] {
              network.forward(random_tensor({1, 3}, 12));
            }).find("7 weights, but its settings ask for 6"),
            std::string::npos);
}

TEST(Network, BackwardNeedsAForwardAndItsShape) {
  Network network = random_network(layer_list(dense(3, 2)));
  EXPECT_THROW(network.backward(random_tensor({1, 2}, 13)), UsageError);
  network.forward(random_tensor({1, 3}, 14));
  EXPECT_THROW(network.backward(random_tensor({1, 2}, 13)), UsageError);
  network.forward_training(random_tensor({1, 3}, 14));
  EXPECT_THROW(network.backward(random_tensor({2, 2}, 13)), ShapeError);
}

/// Every buffer that a network shows keeps its place when a call repeats, and when a smaller one came between.
TEST(Network, RepeatedShapesReuseTheirMemory) {
  Network network = random_network(
      layer_list(sequential(layer_list(dense(4, 4, Activation::tanh), residual(), rms_norm(4))),
                 mixture(dense(4, 2), layer_list(dense(4, 3), dense(4, 3))),
                 parallel("concat", layer_list(dense(3, 2), dense(3, 2))), metacognition(dense(4, 2), {})));
  const Tensor<float> x = random_tensor({6, 4}, 15), less = random_tensor({2, 4}, 16), g = random_tensor({6, 2}, 17);
  const auto buffers = [&] {
    std::vector<const float*> places{network.forward(x).values().data(), network.forward_training(x).values().data()};
    places.push_back(network.backward(g).values().data());
    for (const LayerGradient& gradient : network.gradients()) {
      for (const LayerGradient& child : gradient.children) places.push_back(child.weights.data());
    }
    return places;
  };
  const std::vector<const float*> first = buffers();
  EXPECT_EQ(buffers(), first);
  network.forward(less);
  network.clear_gradients();
  EXPECT_EQ(buffers(), first);
}

}  // namespace
}  // namespace imago
