#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "imago/error.h"
#include "layers/layer_functions.h"
#include "testing/gradient_check.h"
#include "testing/torch_layers.h"

namespace imago::layers {
namespace {

using testing::random_tensor;

class DenseAsTorch : public ::testing::TestWithParam<std::string> {};

TEST_P(DenseAsTorch, ForwardAndBackward) {
  const std::string name = "dense_" + GetParam();
  const auto torch = testing::find_torch_layer(name);
  if (!torch) GTEST_SKIP() << testing::missing_torch_layer(name);
  testing::expect_as_torch(dense(torch->config().at("in"), torch->config().at("out"), parse_activation(GetParam())),
                           *torch, torch->values("w.weight"), torch->values("dw.weight"));
}

INSTANTIATE_TEST_SUITE_P(Activations, DenseAsTorch,
                         ::testing::Values("ReLU", "Silu", "GELU", "Tanh", "Sigmoid", "LeakyReLU", "ReLU2", "Linear"),
                         [](const auto& test) { return test.param; });

TEST(Dense, GradientsAreDifferences) {
  for (const Activation activation :
       {Activation::linear, Activation::silu, Activation::gelu, Activation::tanh, Activation::sigmoid}) {
    SCOPED_TRACE(name(activation));
    Layer layer = dense(13, 7, activation);
    testing::randomize_layer(layer, 4);
    testing::check_gradients(layer, random_tensor({3, 5, 13}, 1));
  }
}

std::vector<double> reference(std::span<const double> x, std::span<const double> w, std::size_t cols) {
  std::vector<double> y;
  for (std::size_t t = 0; t < x.size() / cols; ++t) {
    for (std::size_t r = 0; r < w.size() / cols; ++r) {
      double sum = 0;
      for (std::size_t c = 0; c < cols; ++c) sum += x[t * cols + c] * w[r * cols + c];
      y.push_back(sum);
    }
  }
  return y;
}

TEST(Dense, EveryTypeComputesWithItsDecodedWeights) {
  const Tensor<float> x = random_tensor({5, 37}, 2);
  for (const DTypeInfo& type : kDTypes) {
    Layer layer = with_dtype(dense(37, 29), type.id);
    testing::randomize_layer(layer, 8);
    const std::vector<float> weights = layer.weights->active(type.id);
    const std::vector<double> wanted =
        reference(testing::detail::widen(x.values()), testing::detail::widen(weights), 37);
    for (const bool for_backward : {false, true}) {
      LayerState state;
      layers::Run run{.for_backward = for_backward};
      forward_layer(layer, x, nullptr, state, run);
      ASSERT_EQ(state.post.size(), wanted.size());
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        ASSERT_NEAR(static_cast<double>(state.post[i]), wanted[i], 2e-5 * (1 + std::abs(wanted[i]))) << type.name;
      }
    }
  }
}

TEST(Dense, QuantizedGradientsGoStraightThrough) {
  for (const DType dtype : {DType::int4, DType::fp8e4m3, DType::binary}) {
    SCOPED_TRACE(name(dtype));
    Layer layer = with_dtype(dense(11, 6), dtype);
    testing::randomize_layer(layer, 8);
    testing::GradientCheck check;
    check.reference = [](std::span<const double> x, std::span<const double> w) { return reference(x, w, 11); };
    check.tolerance = 1e-5;
    testing::check_gradients(layer, random_tensor({4, 11}, 2), nullptr, check);
  }
}

TEST(Dense, ProcessesEveryRowWhateverTheShape) {  // [D2]
  Layer layer = dense(4, 3, Activation::relu);
  testing::randomize_layer(layer, 1);
  const Tensor<float> flat = random_tensor({6, 4}, 3);
  LayerState state;
  layers::Run run;
  forward_layer(layer, flat, nullptr, state, run);
  const std::vector<float> wanted(state.post.values().begin(), state.post.values().end());
  EXPECT_EQ(state.post.shape(), (Shape{6, 3}));
  const auto expect_shape = [&](const Shape& in, const Shape& out) {
    forward_layer(layer, flat.reshaped(in), nullptr, state, run);
    EXPECT_EQ(state.post.shape().to_string(), out.to_string());
    EXPECT_TRUE(std::ranges::equal(state.post.values(), wanted)) << in.to_string();
  };
  expect_shape({2, 3, 4}, {2, 3, 3});
  expect_shape({24}, {6, 3});
  expect_shape({1, 2, 12}, {6, 3});
  expect_shape({3, 2, 2, 2}, {6, 3});
}

TEST(Dense, GradientsAddUpOverCalls) {
  Layer layer = dense(4, 3, Activation::tanh);
  testing::randomize_layer(layer, 1);
  const Tensor<float> x = random_tensor({5, 4}, 3);
  const Tensor<float> grad = random_tensor({5, 3}, 4);
  LayerState state;
  layers::Run run{.for_backward = true};
  LayerGradient gradient = zero_gradient(layer);
  forward_layer(layer, x, nullptr, state, run);
  backward_layer(layer, x, nullptr, grad, state, gradient, run);
  const std::vector<float> once = gradient.weights;
  backward_layer(layer, x, nullptr, grad, state, gradient, run);
  for (std::size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(gradient.weights[i], 2 * once[i], 1e-6f);
}

TEST(Dense, InputThatIsNoRowsIsAShapeErrorThatNamesTheLayer) {
  Layer layer = dense(4, 3);
  layer.at = {.l = 7};
  testing::randomize_layer(layer, 1);
  LayerState state;
  layers::Run run;
  try {
    forward_layer(layer, Tensor<float>(Shape{2, 5}), nullptr, state, run);
    FAIL();
  } catch (const ShapeError& error) {
    EXPECT_NE(std::string(error.what()).find("layer (0,0,0,7), Dense"), std::string::npos) << error.what();
  }
}

TEST(Dense, AnEmptyBatchGivesAnEmptyResult) {
  Layer layer = dense(4, 3, Activation::gelu);
  testing::randomize_layer(layer, 1);
  const Tensor<float> x(Shape{0, 4});
  LayerState state;
  for (const bool for_backward : {false, true}) {
    layers::Run run{.for_backward = for_backward};
    forward_layer(layer, x, nullptr, state, run);
    EXPECT_EQ(state.post.shape(), (Shape{0, 3}));
  }
}

}  // namespace
}  // namespace imago::layers
