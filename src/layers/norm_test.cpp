#include <gtest/gtest.h>

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

std::vector<float> post_of(Layer& layer, const Tensor<float>& x) {
  LayerState state;
  layers::Run run;
  forward_layer(layer, x, nullptr, state, run);
  EXPECT_EQ(state.post.shape(), x.shape());
  return {state.post.values().begin(), state.post.values().end()};
}

TEST(RmsNorm, AsTorch) {
  const auto torch = testing::find_torch_layer("rmsnorm");
  if (!torch) GTEST_SKIP() << testing::missing_torch_layer("rmsnorm");
  testing::expect_as_torch(rms_norm(torch->config().at("size"), torch->config().at("eps")), *torch,
                           torch->values("w.weight"), torch->values("dw.weight"));
}

TEST(LayerNorm, AsTorch) {
  const auto torch = testing::find_torch_layer("layernorm");
  if (!torch) GTEST_SKIP() << testing::missing_torch_layer("layernorm");
  testing::expect_as_torch(layer_norm(torch->config().at("size")), *torch, torch->concatenated({"w.weight", "w.bias"}),
                           torch->concatenated({"dw.weight", "dw.bias"}));
}

TEST(Norms, GradientsAreDifferences) {
  for (const int width : {2, 13, 70}) {
    for (const bool is_rms : {true, false}) {
      SCOPED_TRACE(std::to_string(width) + (is_rms ? " rms" : " layer"));
      Layer layer = is_rms ? rms_norm(width, 1e-2) : layer_norm(width);
      testing::randomize_layer(layer, 4, 1);
      const std::size_t n = static_cast<std::size_t>(width);
      const bool has_beta = !is_rms;
      const double eps = is_rms ? 1e-2 : 1e-5;
      testing::GradientCheck check;
      check.reference = [=](std::span<const double> x, std::span<const double> w) {
        std::vector<double> y(x.size());
        for (std::size_t row = 0; row < x.size(); row += n) {
          double mean = 0;
          for (std::size_t i = 0; i < n && has_beta; ++i) mean += x[row + i] / static_cast<double>(n);
          double squares = 0;
          for (std::size_t i = 0; i < n; ++i) squares += (x[row + i] - mean) * (x[row + i] - mean);
          const double r = std::sqrt(squares / static_cast<double>(n) + eps);
          for (std::size_t i = 0; i < n; ++i) {
            y[row + i] = (x[row + i] - mean) / r * w[i] + (has_beta ? w[n + i] : 0);
          }
        }
        return y;
      };
      check.tolerance = 1e-4;
      testing::check_gradients(layer, random_tensor({3, 2, n}, 1, 2), nullptr, check);
    }
  }
}

TEST(Norms, ProcessEveryRow) {  // [D2]
  for (const bool is_rms : {true, false}) {
    Layer layer = is_rms ? rms_norm(4) : layer_norm(4);
    initialize_weights(layer, 1);
    const Tensor<float> x = random_tensor({2, 3, 4}, 5);
    const std::vector<float> got = post_of(layer, x);
    for (std::size_t row = 0; row < 6; ++row) {
      double squares = 0;
      for (std::size_t i = 0; i < 4; ++i) squares += std::pow(static_cast<double>(got[row * 4 + i]), 2);
      EXPECT_NEAR(squares / 4, 1, 1e-2) << "row " << row << " is normalised";
    }
  }
}

TEST(Norms, FreshOnesOnlyNormalise) {
  Layer rms = rms_norm(3);
  Layer norm = layer_norm(3);
  initialize_weights(rms, 1);
  initialize_weights(norm, 1);
  EXPECT_EQ(std::vector<float>(rms.weights->master().begin(), rms.weights->master().end()),
            (std::vector<float>{1, 1, 1}));
  EXPECT_EQ(std::vector<float>(norm.weights->master().begin(), norm.weights->master().end()),
            (std::vector<float>{1, 1, 1, 0, 0, 0}));
}

TEST(Norms, WidthIsTheOutputElseTheInput) {
  LayerConfig config;
  config.type = LayerType::rms_norm;
  config.input_height = 6;
  EXPECT_EQ(weight_shape(config).count(), 6u);
  config.output_height = 4;
  EXPECT_EQ(weight_shape(config).count(), 4u);
  config.type = LayerType::layer_norm;
  EXPECT_EQ(weight_shape(config).count(), 8u);
}

TEST(Norms, EpsilonIsThatOfTheLayerElseTheSpecs) {
  const Tensor<float> x(Shape{1, 2}, {1e-3f, 1e-3f});
  Layer layer = rms_norm(2);
  initialize_weights(layer, 1);
  EXPECT_NEAR(post_of(layer, x)[0], 1e-3 / std::sqrt(2e-6), 1e-6);
  layer.config.rms_norm_eps = 3e-6;
  EXPECT_NEAR(post_of(layer, x)[0], 1e-3 / std::sqrt(4e-6), 1e-6);
}

TEST(Norms, EveryTypeComputesWithItsDecodedWeights) {
  const Tensor<float> x = random_tensor({3, 33}, 2);
  for (const DTypeInfo& type : kDTypes) {
    for (const bool is_rms : {true, false}) {
      Layer quantized = with_dtype(is_rms ? rms_norm(33) : layer_norm(33), type.id);
      testing::randomize_layer(quantized, 8);
      Layer plain = is_rms ? rms_norm(33) : layer_norm(33);
      plain.weights.emplace(quantized.weights->count()).set_master(quantized.weights->active(type.id));
      EXPECT_EQ(post_of(quantized, x), post_of(plain, x)) << type.name;
    }
  }
}

TEST(Norms, RowsMustFit) {
  Layer layer = rms_norm(4);
  initialize_weights(layer, 1);
  LayerState state;
  layers::Run run;
  EXPECT_THROW(forward_layer(layer, Tensor<float>(Shape{2, 5}), nullptr, state, run), ShapeError);
}

}  // namespace
}  // namespace imago::layers
