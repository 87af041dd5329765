#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "layers/layer_functions.h"
#include "testing/gradient_check.h"
#include "testing/torch_layers.h"

namespace imago::layers {
namespace {

TEST(Embedding, AsTorch) {
  const auto torch = testing::find_torch_layer("embedding");
  if (!torch) GTEST_SKIP() << testing::missing_torch_layer("embedding");
  testing::expect_as_torch(embedding(torch->config().at("vocab"), torch->config().at("dim")), *torch,
                           torch->values("w.weight"), torch->values("dw.weight"));
}

TEST(Embedding, GradientsAreDifferencesAlsoThroughTheActivation) {  // [D22]
  for (const Activation activation : {Activation::linear, Activation::tanh, Activation::gelu}) {
    SCOPED_TRACE(name(activation));
    Layer layer = embedding(5, 7);
    layer.config.activation = activation;
    testing::randomize_layer(layer, 4, 1);
    testing::GradientCheck check;
    check.of_input = false;
    testing::check_gradients(layer, Tensor<float>(Shape{2, 4}, {0, 4, 4, 2, 9, 4, 0, -3}), nullptr, check);
  }
}

TEST(Embedding, InputHasNoGradient) {
  Layer layer = embedding(5, 3);
  initialize_weights(layer, 1);
  const Tensor<float> x(Shape{3}, {1, 2, 1});
  LayerState state;
  state.grad_input = Tensor<float>(Shape{3}, {5, 5, 5});
  layers::Run run{.for_backward = true};
  forward_layer(layer, x, nullptr, state, run);
  LayerGradient gradient = zero_gradient(layer);
  backward_layer(layer, x, nullptr, testing::random_tensor({3, 3}, 1), state, gradient, run);
  EXPECT_TRUE(std::ranges::equal(state.grad_input.values(), std::vector<float>(3)));
}

TEST(Embedding, IdsAreCutOffAndThoseOutsideGiveZeros) {
  Layer layer = embedding(4, 2);
  layer.weights.emplace(4, 2).set_master(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const Tensor<float> x(Shape{10}, {0, 3, 2.9f, -0.9f, 4, -1, nan, infinity, -infinity, 1e30f});
  const std::vector<float> wanted{1, 2, 7, 8, 5, 6, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  for (const bool for_backward : {false, true}) {
    LayerState state;
    layers::Run run{.for_backward = for_backward};
    forward_layer(layer, x, nullptr, state, run);
    EXPECT_EQ(state.post.shape(), (Shape{10, 2}));
    EXPECT_TRUE(std::ranges::equal(state.post.values(), wanted));
  }
}

TEST(Embedding, ZeroRowsComeBeforeTheActivation) {
  Layer layer = embedding(2, 2);
  layer.config.activation = Activation::sigmoid;
  initialize_weights(layer, 1);
  LayerState state;
  layers::Run run;
  forward_layer(layer, Tensor<float>(Shape{1}, {7}), nullptr, state, run);
  EXPECT_EQ(state.post[0], 0.5f);
}

TEST(Embedding, AddsAnExtentToEveryShape) {
  Layer layer = embedding(4, 3);
  initialize_weights(layer, 1);
  LayerState state;
  layers::Run run;
  forward_layer(layer, Tensor<float>(Shape{2, 5}), nullptr, state, run);
  EXPECT_EQ(state.post.shape(), (Shape{2, 5, 3}));
  forward_layer(layer, Tensor<float>(Shape{5, 2}), nullptr, state, run);
  EXPECT_EQ(state.post.shape(), (Shape{5, 2, 3}));
  forward_layer(layer, Tensor<float>(Shape{}), nullptr, state, run);
  EXPECT_EQ(state.post.shape(), (Shape{3}));
}

TEST(Embedding, EveryTypeGivesItsDecodedRows) {
  const Tensor<float> x(Shape{6}, {0, 12, 5, 5, 3, 1});
  for (const DTypeInfo& type : kDTypes) {
    Layer layer = with_dtype(embedding(13, 11), type.id);  // rows begin in the middle of bytes
    testing::randomize_layer(layer, 8);
    const std::vector<float> table = layer.weights->active(type.id);
    for (const bool for_backward : {false, true}) {
      LayerState state;
      layers::Run run{.for_backward = for_backward};
      forward_layer(layer, x, nullptr, state, run);
      for (std::size_t i = 0; i < x.size(); ++i) {
        for (std::size_t c = 0; c < 11; ++c) {
          ASSERT_EQ(state.post[i * 11 + c], table[static_cast<std::size_t>(x[i]) * 11 + c]) << type.name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace imago::layers
