#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "imago/error.h"
#include "imago/layer.h"
#include "layers/layer_functions.h"
#include "testing/gradient_check.h"
#include "testing/layer_dtypes.h"

namespace imago::layers {
namespace {

using testing::random_tensor;

Layer layer_of(int inputs, int clusters, double temperature = 0, const std::string& mode = {},
               Activation activation = Activation::linear) {
  Layer layer = kmeans(inputs, clusters, temperature, mode);
  layer.config.activation = activation;
  testing::randomize_layer(layer, 5, 1);
  return layer;
}

Tensor<float> forward(Layer& layer, const Tensor<float>& x) {
  LayerState state;
  layers::Run run;
  forward_layer(layer, x, nullptr, state, run);
  return state.post;
}

/// The spec's formulas in float64; activations tanh and linear.
std::vector<double> reference(const LayerConfig& c, std::span<const double> x, std::span<const double> w) {
  const std::size_t I = static_cast<std::size_t>(c.input_height), K = static_cast<std::size_t>(c.num_clusters);
  const double T = c.kmeans_temperature == 0 ? 1 : c.kmeans_temperature;
  std::vector<double> out;
  for (std::size_t row = 0; row < x.size() / I; ++row) {
    std::vector<double> a(K), features(I);
    double sum = 0;
    for (std::size_t j = 0; j < K; ++j) {
      double distance = 0;
      for (std::size_t i = 0; i < I; ++i) distance += std::pow(x[row * I + i] - w[j * I + i], 2);
      sum += a[j] = std::exp(-distance / (2 * T * T));
    }
    for (std::size_t j = 0; j < K; ++j) {
      a[j] /= sum;
      for (std::size_t i = 0; i < I; ++i) features[i] += a[j] * w[j * I + i];
    }
    for (const double pre : c.output_mode == "features" ? features : a) {
      out.push_back(c.activation == Activation::tanh ? std::tanh(pre) : pre);
    }
  }
  return out;
}

TEST(KMeans, GradientsAgreeWithDifferences) {
  for (const std::string mode : {"", "features", "assignments"}) {
    for (const double temperature : {0.0, 0.7, 2.5}) {
      for (const Activation activation : {Activation::linear, Activation::tanh}) {
        SCOPED_TRACE(mode + " " + std::to_string(temperature) + " " + std::string(name(activation)));
        Layer layer = layer_of(11, 5, temperature, mode, activation);
        testing::GradientCheck check;
        check.tolerance = 2e-4;
        check.reference = [&](std::span<const double> x, std::span<const double> w) {
          return reference(layer.config, x, w);
        };
        testing::check_gradients(layer, random_tensor({2, 3, 11}, 3), nullptr, check);
      }
    }
  }
}

TEST(KMeans, GradientsAddUp) {
  Layer layer = layer_of(3, 4, 0, "features");
  const Tensor<float> x = random_tensor({5, 3}, 1);
  LayerState state;
  layers::Run run{.for_backward = true};
  forward_layer(layer, x, nullptr, state, run);
  LayerGradient once = zero_gradient(layer), twice = zero_gradient(layer);
  backward_layer(layer, x, nullptr, x, state, once, run);
  backward_layer(layer, x, nullptr, x, state, twice, run);
  backward_layer(layer, x, nullptr, x, state, twice, run);
  for (std::size_t i = 0; i < once.weights.size(); ++i) EXPECT_NEAR(twice.weights[i], 2 * once.weights[i], 1e-6f);
}

TEST(KMeans, RowsAreIndependentAndTheLastDimensionIsReplaced) {
  Layer layer = layer_of(4, 3);
  const Tensor<float> x = random_tensor({2, 5, 4}, 1);
  const Tensor<float> together = forward(layer, x);
  EXPECT_EQ(together.shape(), (Shape{2, 5, 3}));
  for (std::size_t row = 0; row < 10; ++row) {
    const std::span<const float> part = x.values().subspan(row * 4, 4);
    const Tensor<float> alone = forward(layer, Tensor<float>({4}, std::vector<float>(part.begin(), part.end())));
    EXPECT_EQ(alone.shape(), (Shape{3}));
    EXPECT_TRUE(std::ranges::equal(alone.values(), together.values().subspan(row * 3, 3)));
  }
  EXPECT_EQ(forward(layer, x.reshaped({2, 20})).shape(), (Shape{10, 3}));
  layer.config.output_mode = "features";
  EXPECT_EQ(forward(layer, x).shape(), (Shape{2, 5, 4}));
  EXPECT_EQ(forward(layer, Tensor<float>(Shape{0, 4})).shape(), (Shape{0, 4}));
}

TEST(KMeans, WhatIsFarFromAllCentersGoesToTheNearest) {
  Layer layer = layer_of(1, 2);
  layer.weights->set_master(std::vector<float>{0, 1});
  const Tensor<float> post = forward(layer, Tensor<float>({3, 1}, {1000, -1000, 0.5f}));
  EXPECT_TRUE(std::ranges::equal(post.values(), std::vector<float>{0, 1, 1, 0, 0.5f, 0.5f}));
}

TEST(KMeans, AllTypes) {
  testing::check_all_dtypes([] { return layer_of(7, 4, 0.5); }, random_tensor({5, 7}, 1));
  testing::check_all_dtypes([] { return layer_of(7, 4, 0.5, "features"); }, random_tensor({5, 7}, 1));
}

TEST(KMeans, FreshCentersAreUniform) {
  Layer layer = kmeans(4, 6);
  initialize_weights(layer, 3);
  ASSERT_EQ(layer.weights->count(), 24u);
  EXPECT_EQ(layer.weights->rows(), 6u);
  const std::span<const float> master = layer.weights->master();
  EXPECT_TRUE(std::ranges::all_of(master, [](float w) { return w != 0 && std::abs(w) <= 0.1f; }));
}

TEST(KMeans, Errors) {
  EXPECT_THROW(weight_shape(kmeans(0, 4).config), UsageError);
  EXPECT_THROW(weight_shape(kmeans(4, 0).config), UsageError);
  EXPECT_THROW(weight_shape(kmeans(4, 2, std::nan("")).config), UsageError);
  EXPECT_THROW(weight_shape(kmeans(4, 2, 1e-200).config), UsageError);
  Layer layer = layer_of(4, 3);
  EXPECT_THROW(forward(layer, random_tensor({2, 5}, 1)), ShapeError);
}

}  // namespace
}  // namespace imago::layers
