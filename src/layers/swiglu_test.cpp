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
#include "testing/torch_layers.h"

namespace imago::layers {
namespace {

using testing::random_tensor;

Layer layer_of(int width, int intermediate) {
  Layer layer = swiglu(width, intermediate);
  testing::randomize_layer(layer, 5);
  return layer;
}

/// The spec's formulas in float64.
std::vector<double> reference(const LayerConfig& c, std::span<const double> x, std::span<const double> w) {
  const std::size_t I = static_cast<std::size_t>(c.input_height), M = static_cast<std::size_t>(c.output_height);
  const double *wg = w.data(), *wu = wg + M * I, *wd = wu + M * I, *bg = wd + I * M, *bu = bg + M, *bd = bu + M;
  const double eps = c.rms_norm_eps > 0 ? c.rms_norm_eps : 1e-6;
  std::vector<double> out;
  for (std::size_t row = 0; row < x.size() / I; ++row) {
    std::vector<double> m(M);
    double squares = 0;
    for (std::size_t j = 0; j < M; ++j) {
      double g = c.no_bias ? 0 : bg[j], u = c.no_bias ? 0 : bu[j];
      for (std::size_t i = 0; i < I; ++i) {
        g += wg[j * I + i] * x[row * I + i];
        u += wu[j * I + i] * x[row * I + i];
      }
      const double gate = c.activation == Activation::relu2 ? (g > 0 ? g * g : 0) : g / (1 + std::exp(-g));
      m[j] = gate * u;
      squares += m[j] * m[j];
    }
    for (std::size_t j = 0; j < M && !c.inner_norm.empty(); ++j) {
      m[j] *= static_cast<double>(c.inner_norm[j]) / std::sqrt(squares / static_cast<double>(M) + eps);
    }
    for (std::size_t i = 0; i < I; ++i) {
      double y = c.no_bias ? 0 : bd[i];
      for (std::size_t j = 0; j < M; ++j) y += wd[i * M + j] * m[j];
      out.push_back(y);
    }
  }
  return out;
}

TEST(SwiGlu, AsTorch) {
  const auto torch = testing::find_torch_layer("swiglu");
  if (!torch) GTEST_SKIP() << testing::missing_torch_layer("swiglu");
  testing::expect_as_torch(swiglu(torch->config().at("in"), torch->config().at("hidden")), *torch,
                           torch->concatenated({"w.gate", "w.up", "w.down", "w.b_gate", "w.b_up", "w.b_down"}),
                           torch->concatenated({"dw.gate", "dw.up", "dw.down", "dw.b_gate", "dw.b_up", "dw.b_down"}));
}

TEST(SwiGlu, GradientsAgreeWithDifferences) {
  struct Case {
    int width, intermediate;
    Activation activation;
    bool norm;
    double eps;
    bool no_bias = false;
  };
  for (const Case& c : {Case{5, 7, Activation::linear, false, 0}, Case{7, 3, Activation::relu, false, 0},
                        Case{1, 1, Activation::silu, false, 0}, Case{5, 9, Activation::relu2, false, 0},
                        Case{5, 9, Activation::silu, true, 0}, Case{6, 5, Activation::relu2, true, 0.2},
                        Case{5, 7, Activation::silu, false, 0, true}}) {
    SCOPED_TRACE(std::string(name(c.activation)) + (c.norm ? " with norm" : ""));
    Layer layer = layer_of(c.width, c.intermediate);
    layer.config.activation = c.activation;
    layer.config.rms_norm_eps = c.eps;
    layer.config.no_bias = c.no_bias;
    if (c.norm) {
      for (int i = 0; i < c.intermediate; ++i) layer.config.inner_norm.push_back(0.6f + 0.1f * static_cast<float>(i));
    }
    testing::GradientCheck check;
    check.tolerance = 2e-4;
    check.reference = [&](std::span<const double> x, std::span<const double> w) {
      return reference(layer.config, x, w);
    };
    testing::check_gradients(layer, random_tensor({2, 3, static_cast<std::size_t>(c.width)}, 3, 2), nullptr, check);
  }
}

TEST(SwiGlu, LongInputsAreCutIntoPieces) {  // more values than one piece of the backward has
  Layer layer = layer_of(3, 41);
  testing::GradientCheck check;
  check.tolerance = 2e-4;
  check.most = 12;
  check.reference = [&](std::span<const double> x, std::span<const double> w) { return reference(layer.config, x, w); };
  testing::check_gradients(layer, random_tensor({307, 3}, 3), nullptr, check);
}

TEST(SwiGlu, OnlyRelu2ChangesTheGate) {
  const Tensor<float> x = random_tensor({4, 5}, 1);
  const auto run_with = [&](Activation activation) {
    Layer layer = layer_of(5, 6);
    layer.config.activation = activation;
    LayerState state;
    layers::Run run{.for_backward = true};
    forward_layer(layer, x, nullptr, state, run);
    return std::vector<float>(state.post.values().begin(), state.post.values().end());
  };
  const std::vector<float> silu = run_with(Activation::silu);
  for (const Activation other : {Activation::linear, Activation::relu, Activation::gelu, Activation::tanh,
                                 Activation::sigmoid, Activation::leaky_relu}) {
    EXPECT_EQ(run_with(other), silu) << name(other);
  }
  EXPECT_NE(run_with(Activation::relu2), silu);
}

TEST(SwiGlu, RowsOfAnyShape) {
  Layer layer = layer_of(4, 6);
  const Tensor<float> x = random_tensor({2, 3, 4}, 1);
  LayerState state;
  layers::Run run{.for_backward = true};
  forward_layer(layer, x, nullptr, state, run);
  EXPECT_EQ(state.post.shape(), (Shape{2, 3, 4}));
  const Tensor<float> wanted = state.post;
  const Tensor<float> folded = x.reshaped({2, 12});
  forward_layer(layer, folded, nullptr, state, run);
  EXPECT_EQ(state.post.shape(), (Shape{6, 4}));
  EXPECT_TRUE(std::ranges::equal(state.post.values(), wanted.values()));
  LayerGradient gradient = zero_gradient(layer);
  backward_layer(layer, folded, nullptr, state.post, state, gradient, run);
  EXPECT_EQ(state.grad_input.shape(), (Shape{2, 12}));

  const Tensor<float> empty(Shape{0, 4});
  forward_layer(layer, empty, nullptr, state, run);
  EXPECT_EQ(state.post.shape(), (Shape{0, 4}));
  backward_layer(layer, empty, nullptr, empty, state, gradient, run);
  EXPECT_EQ(state.grad_input.shape(), (Shape{0, 4}));
}

TEST(SwiGlu, AllTypes) {
  testing::check_all_dtypes([] { return layer_of(9, 14); }, random_tensor({5, 9}, 1));
}

TEST(SwiGlu, FreshWeightsHaveNoBias) {
  Layer layer = swiglu(4, 6);
  initialize_weights(layer, 3);
  const std::span<const float> master = layer.weights->master();
  ASSERT_EQ(master.size(), 72u + 12 + 4);
  EXPECT_TRUE(std::ranges::all_of(master.first(72), [](float w) { return w != 0 && std::abs(w) <= 0.1f; }));
  EXPECT_TRUE(std::ranges::all_of(master.subspan(72), [](float w) { return w == 0; }));
}

TEST(SwiGlu, Errors) {
  EXPECT_THROW(weight_shape(swiglu(0, 4).config), UsageError);
  EXPECT_THROW(weight_shape(swiglu(4, -1).config), UsageError);
  LayerConfig config = swiglu(4, 6).config;
  config.inner_norm.resize(5);
  EXPECT_THROW(weight_shape(config), UsageError);
  Layer layer = layer_of(4, 6);
  LayerState state;
  layers::Run run;
  EXPECT_THROW(forward_layer(layer, random_tensor({2, 5}, 1), nullptr, state, run), ShapeError);
}

}  // namespace
}  // namespace imago::layers
