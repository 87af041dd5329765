#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "imago/error.h"
#include "imago/layer.h"
#include "layers/layer_functions.h"
#include "testing/gradient_check.h"
#include "testing/torch_layers.h"

namespace imago::layers {
namespace {

using testing::random_tensor;

Tensor<float> forward(Layer& layer, const Tensor<float>& x, std::uint64_t seed = 0) {
  LayerState state;
  layers::Run run{.seed = seed};
  forward_layer(layer, x, nullptr, state, run);
  return state.post;
}

/// Rows that sum to 1.
void expect_rows(const Tensor<float>& post, std::size_t cols) {
  for (std::size_t row = 0; row < post.size() / cols; ++row) {
    double sum = 0;
    for (const float p : post.values().subspan(row * cols, cols)) {
      EXPECT_GE(p, 0);
      sum += static_cast<double>(p);
    }
    EXPECT_NEAR(sum, 1, 1e-5) << "row " << row;
  }
}

TEST(Softmax, AsTorch) {
  const auto torch = testing::find_torch_layer("softmax");
  if (!torch) GTEST_SKIP() << testing::missing_torch_layer("softmax");
  for (const SoftmaxType type :
       {SoftmaxType::standard, SoftmaxType::grid, SoftmaxType::hierarchical, SoftmaxType::temperature,
        SoftmaxType::masked, SoftmaxType::adaptive, SoftmaxType::mixture}) {
    SCOPED_TRACE(name(type));
    Layer layer = softmax(type);
    layer.config.temperature = torch->config().at("temperature");
    testing::expect_as_torch(std::move(layer), *torch, {}, {});
  }
}

TEST(Softmax, SparseAsTorch) {
  const auto torch = testing::find_torch_layer("sparsemax");
  if (!torch) GTEST_SKIP() << testing::missing_torch_layer("sparsemax");
  testing::expect_as_torch(softmax(SoftmaxType::sparse), *torch, {}, {});
  Layer layer = softmax(SoftmaxType::entmax);
  layer.config.entmax_alpha = 2.5;
  testing::expect_as_torch(std::move(layer), *torch, {}, {});
}

struct GradientCase {
  const char* name;
  SoftmaxType type;
  double temperature = 0, alpha = 0;
  std::vector<bool> mask = {};
  int rows = 0, cols = 0;
  std::vector<int> levels = {};
};

class SoftmaxGradients : public ::testing::TestWithParam<GradientCase> {};

TEST_P(SoftmaxGradients, AgreeWithDifferences) {
  const GradientCase& c = GetParam();
  Layer layer = softmax(c.type);
  layer.config.temperature = c.temperature;
  layer.config.entmax_alpha = c.alpha;
  layer.config.mask = c.mask;
  layer.config.softmax_rows = c.rows;
  layer.config.softmax_cols = c.cols;
  layer.config.hierarchy_levels = c.levels;
  testing::GradientCheck check;
  check.run.seed = 11;
  // Values far apart on a lattice: a step of 1/512 never changes which of them are in the support of a sparse map.
  check.step = 1.0 / 512;
  Tensor<float> x({3, 2, 6});
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.13f * static_cast<float>(i * i * 7 % 23);
  testing::check_gradients(layer, x, nullptr, check);
}

INSTANTIATE_TEST_SUITE_P(
    Variants, SoftmaxGradients,
    ::testing::Values(GradientCase{"standard", SoftmaxType::standard},
                      GradientCase{"grid", SoftmaxType::grid, 0, 0, {}, 3, 4},
                      GradientCase{"hierarchical", SoftmaxType::hierarchical, 0, 0, {}, 0, 0, {2, 9}},
                      GradientCase{"temperature", SoftmaxType::temperature, 0.6},
                      GradientCase{"negative_temperature", SoftmaxType::temperature, -1.5},
                      GradientCase{"gumbel", SoftmaxType::gumbel, 1.4},
                      GradientCase{"masked", SoftmaxType::masked, 0.8, 0, {true, false, true, true, false}},
                      GradientCase{"all_masked", SoftmaxType::masked, 0, 0, std::vector<bool>(6, false)},
                      GradientCase{"sparse", SoftmaxType::sparse, 1.3}, GradientCase{"adaptive", SoftmaxType::adaptive},
                      GradientCase{"mixture", SoftmaxType::mixture, 2},
                      GradientCase{"entmax", SoftmaxType::entmax, 0.9},
                      GradientCase{"entmax_1_25", SoftmaxType::entmax, 0, 1.25},
                      GradientCase{"entmax_1_8", SoftmaxType::entmax, 1.1, 1.8},
                      GradientCase{"entmax_soft", SoftmaxType::entmax, 0, 0.5},
                      GradientCase{"entmax_sparse", SoftmaxType::entmax, 0, 3}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Softmax, RunsOverTheLastDimension) {
  Layer layer = softmax();
  const Tensor<float> x = random_tensor({2, 3, 5}, 1, 4);
  const Tensor<float> post = forward(layer, x);
  EXPECT_EQ(post.shape(), x.shape());
  expect_rows(post, 5);
}

TEST(Softmax, GridsHaveRowsOfTheirOwn) {
  const Tensor<float> x = random_tensor({2, 12}, 1, 4);
  Layer grid = softmax(SoftmaxType::grid);
  grid.config.softmax_rows = 4;
  grid.config.softmax_cols = 3;
  expect_rows(forward(grid, x), 3);
  grid.config.softmax_rows = 0;
  expect_rows(forward(grid, x), 12);

  Layer levels = softmax(SoftmaxType::hierarchical);
  levels.config.softmax_rows = 2;
  levels.config.softmax_cols = 6;
  expect_rows(forward(levels, x), 6);
  levels.config.hierarchy_levels = {7, 4};
  expect_rows(forward(levels, x), 4);

  Layer standard = softmax();  // the sizes are for grids alone
  standard.config.softmax_rows = 4;
  standard.config.softmax_cols = 3;
  expect_rows(forward(standard, x), 12);
}

TEST(Softmax, MaskedValuesGetNothing) {
  Layer layer = softmax(SoftmaxType::masked);
  layer.config.mask = {true, false, true};  // the fourth is past the mask: kept
  const Tensor<float> x({2, 4}, {1, 100, 1, 1, 0, 0, 5, 0});
  const Tensor<float> post = forward(layer, x);
  for (const std::size_t i : {0u, 2u, 3u}) EXPECT_NEAR(post[i], 1.0f / 3, 1e-6f);
  EXPECT_EQ(post[1], 0);
  EXPECT_EQ(post[5], 0);
  EXPECT_GT(post[6], 0.97f);
}

TEST(Softmax, GumbelNoiseComesFromTheSeed) {
  Layer layer = softmax(SoftmaxType::gumbel);
  const Tensor<float> x = random_tensor({3, 5}, 1);
  LayerState state;
  layers::Run run{.seed = 3};
  forward_layer(layer, x, nullptr, state, run);
  const Tensor<float> first = state.post;
  EXPECT_NE(run.seed, 3u);
  forward_layer(layer, x, nullptr, state, run);
  EXPECT_FALSE(std::ranges::equal(state.post.values(), first.values()));
  expect_rows(first, 5);
  EXPECT_TRUE(std::ranges::equal(forward(layer, x, 3).values(), first.values()));
  EXPECT_FALSE(std::ranges::equal(forward(layer, x, 4).values(), first.values()));

  Layer quiet = softmax();
  layers::Run untouched{.seed = 3};
  forward_layer(quiet, x, nullptr, state, untouched);
  EXPECT_EQ(untouched.seed, 3u);
}

// Adding Gumbel noise and taking the largest draws from softmax.
TEST(Softmax, GumbelDrawsFollowTheProbabilities) {
  Layer layer = softmax(SoftmaxType::gumbel);
  const std::size_t draws = 20'000;
  Tensor<float> x({draws, 3});
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::log(static_cast<float>(1 + 2 * (i % 3)));  // 1 : 3 : 5
  const Tensor<float> post = forward(layer, x, 1);
  std::size_t wins[3] = {};
  for (std::size_t row = 0; row < draws; ++row) {
    const std::span<const float> p = post.values().subspan(3 * row, 3);
    ++wins[std::ranges::max_element(p) - p.begin()];
  }
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(static_cast<double>(wins[i]) / draws, static_cast<double>(1 + 2 * i) / 9, 0.015);
  }
}

TEST(Softmax, EmptyInputs) {
  for (const SoftmaxType type : {SoftmaxType::standard, SoftmaxType::sparse, SoftmaxType::entmax}) {
    Layer layer = softmax(type);
    for (const Shape& shape : {Shape{3, 0}, Shape{0, 3}}) {
      LayerState state;
      layers::Run run;
      LayerGradient gradient;
      const Tensor<float> x(shape);
      forward_layer(layer, x, nullptr, state, run);
      EXPECT_EQ(state.post.shape(), shape);
      backward_layer(layer, x, nullptr, x, state, gradient, run);
      EXPECT_EQ(state.grad_input.shape(), shape);
    }
  }
}

TEST(Softmax, Errors) {
  const auto refuse = [](SoftmaxType type, auto&& change) {
    Layer layer = softmax(type);
    change(layer.config);
    EXPECT_THROW(weight_shape(layer.config), UsageError) << name(type);
    EXPECT_THROW(forward(layer, random_tensor({2, 4}, 1)), UsageError) << name(type);
  };
  refuse(SoftmaxType::standard, [](LayerConfig& c) { c.temperature = std::nan(""); });
  refuse(SoftmaxType::standard, [](LayerConfig& c) { c.temperature = 1e-60; });
  refuse(SoftmaxType::entmax, [](LayerConfig& c) { c.entmax_alpha = std::nan(""); });
  refuse(SoftmaxType::grid, [](LayerConfig& c) { c.softmax_rows = -1; });
  refuse(SoftmaxType::hierarchical, [](LayerConfig& c) { c.hierarchy_levels = {-3}; });

  Layer grid = softmax(SoftmaxType::grid);
  grid.config.softmax_rows = 2;
  grid.config.softmax_cols = 3;
  EXPECT_THROW(forward(grid, random_tensor({2, 4}, 1)), ShapeError);
  Layer masked = softmax(SoftmaxType::masked);
  masked.config.mask = std::vector<bool>(5, true);
  EXPECT_THROW(forward(masked, random_tensor({2, 4}, 1)), ShapeError);
  EXPECT_NO_THROW(forward(masked, random_tensor({2, 5}, 1)));
}

TEST(Softmax, OwnsNoWeights) {
  Layer layer = softmax();
  initialize_weights(layer, 1);
  EXPECT_FALSE(layer.weights.has_value());
}

}  // namespace
}  // namespace imago::layers
