// Layers over doubles, where the test of the type has no reference in float64: activation functions, Softmax,
// Embedding; and where layers of other types round. The others are compared by testing::check_gradients.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <string>
#include <vector>

#include "layers/layer_functions.h"
#include "testing/every_layer.h"

namespace imago::layers {
namespace {

Tensor<double> wide_tensor(const Shape& shape) {
  Tensor<double> x(shape);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 3 * std::sin(static_cast<double>(i * i) + 0.3);
  return x;
}

std::vector<double> run(Layer& layer, const Tensor<double>& x) {
  LayerState state;
  layers::Run run{.seed = 11};
  forward_layer(layer, x, nullptr, state, run);
  return {state.wide.post.values().begin(), state.wide.post.values().end()};
}

void expect_close(const std::vector<double>& got, const std::vector<double>& wanted, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], wanted[i], 1e-12) << what << ", entry " << i;
}

void load(Layer& layer, const std::vector<double>& weights) {
  layer.config.dtype = DType::float64;
  layer.weights.emplace(weight_shape(layer.config)).set_loaded(DType::float64, std::as_bytes(std::span(weights)), 1);
}

double value_of(Activation activation, double x) {
  switch (activation) {
    case Activation::linear: return x;
    case Activation::relu: return std::max(x, 0.0);
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::gelu:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * std::pow(x, 3))));
    case Activation::tanh: return std::tanh(x);
    case Activation::sigmoid: return 1 / (1 + std::exp(-x));
    case Activation::leaky_relu: return x < 0 ? x / 100 : x;
    case Activation::relu2: return std::pow(std::max(x, 0.0), 2);
  }
  return x;
}

TEST(Float64, DenseHasEveryActivation) {
  const std::vector<double> weights = {1 / 3.0, -2 / 7.0, 1e-9, 0.7, 1.0 / 9, -1.5};
  const Tensor<double> x = wide_tensor({5, 3});
  for (int id = -1; id <= 6; ++id) {
    const auto activation = static_cast<Activation>(id);
    Layer layer = dense(3, 2, activation);
    load(layer, weights);
    std::vector<double> wanted;
    for (std::size_t row = 0; row < x.size(); row += 3) {
      for (std::size_t o = 0; o < 6; o += 3) {
        wanted.push_back(
            value_of(activation, x[row] * weights[o] + x[row + 1] * weights[o + 1] + x[row + 2] * weights[o + 2]));
      }
    }
    expect_close(run(layer, x), wanted, std::string(name(activation)));
  }
}

TEST(Float64, EmbeddingCopiesRows) {
  Layer layer = embedding(3, 2);
  const std::vector<double> weights = {1 / 3.0, 1 / 7.0, 1 / 9.0, 1 / 11.0, 1 / 13.0, 1e-300};
  load(layer, weights);
  EXPECT_EQ(run(layer, Tensor<double>({4}, {2.9, 0, 3, -0.5})),
            (std::vector<double>{weights[4], weights[5], weights[0], weights[1], 0, 0, weights[0], weights[1]}));
}

TEST(Float64, SoftmaxOfEachKind) {
  const Tensor<double> x = wide_tensor({4, 6});
  const auto soft_rows = [&](double temperature, std::size_t cols, const std::vector<bool>& mask) {
    std::vector<double> rows;
    for (std::size_t row = 0; row < x.size(); row += cols) {
      std::vector<double> p;
      for (std::size_t i = 0; i < cols; ++i) {
        p.push_back(i < mask.size() && !mask[i] ? 0 : std::exp(x[row + i] / temperature));
      }
      const double sum = std::accumulate(p.begin(), p.end(), 0.0);
      for (const double value : p) rows.push_back(value / sum);
    }
    return rows;
  };
  Layer plain = softmax();
  expect_close(run(plain, x), soft_rows(1, 6, {}), "standard");
  Layer warm = softmax(SoftmaxType::temperature);
  warm.config.temperature = 0.7;
  expect_close(run(warm, x), soft_rows(0.7, 6, {}), "temperature");
  Layer masked = softmax(SoftmaxType::masked);
  masked.config.mask = {true, false, true, false};
  expect_close(run(masked, x), soft_rows(1, 6, masked.config.mask), "masked");
  Layer grid = softmax(SoftmaxType::grid);
  grid.config.softmax_rows = 4;
  grid.config.softmax_cols = 3;
  expect_close(run(grid, x), soft_rows(1, 3, {}), "grid");
}

// The maps without a formula, by what defines them: p = max(0, factor · z - tau)^exponent with one tau per row.
TEST(Float64, SparseSoftmaxSumsToOne) {
  const Tensor<double> x = wide_tensor({4, 6});
  for (const double alpha : {1.5, 2.0}) {
    Layer layer = softmax(alpha == 2 ? SoftmaxType::sparse : SoftmaxType::entmax);
    const std::vector<double> p = run(layer, x);
    for (std::size_t row = 0; row < x.size(); row += 6) {
      double sum = 0, tau = 0;
      for (std::size_t i = row; i < row + 6; ++i) {
        sum += p[i];
        if (p[i] == *std::max_element(p.begin() + static_cast<std::ptrdiff_t>(row),
                                      p.begin() + static_cast<std::ptrdiff_t>(row) + 6)) {
          tau = (alpha - 1) * x[i] - std::pow(p[i], alpha - 1);
        }
      }
      EXPECT_NEAR(sum, 1, 1e-12);
      for (std::size_t i = row; i < row + 6; ++i) {
        EXPECT_NEAR(p[i], std::pow(std::max(0.0, (alpha - 1) * x[i] - tau), 1 / (alpha - 1)), 1e-12) << alpha;
      }
    }
  }
}

TEST(Float64, GumbelNoiseIsThatOfFloat32) {
  const Tensor<double> x = wide_tensor({2, 6});
  Layer layer = softmax(SoftmaxType::gumbel);
  LayerState state;
  layers::Run narrow{.seed = 11};
  Tensor<float> rounded(x.shape());
  std::ranges::transform(x.values(), rounded.values().begin(), [](double value) { return static_cast<float>(value); });
  forward_layer(layer, rounded, nullptr, state, narrow);
  const std::vector<double> got = run(layer, x);
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], static_cast<double>(state.post[i]), 1e-6);
}

// Every type runs over doubles, with weights of every kind; those that are not float64 give what they give in float32.
TEST(Float64, LayersOfOtherTypesRoundAtTheirBorder) {
  for (int id = 0; id < kLayerTypes; ++id) {
    const auto type = static_cast<LayerType>(id);
    SCOPED_TRACE(name(type));
    auto [layer, x] = testing::layer_case(type);
    testing::randomize_layer(layer, 3);
    if (layer.weights) layer.config.dtype = DType::int8;
    LayerState narrow, wide;
    layers::Run run;
    forward_layer(layer, x, nullptr, narrow, run);
    Tensor<double> wide_x(x.shape());
    std::ranges::copy(x.values(), wide_x.values().begin());
    forward_layer(layer, wide_x, nullptr, wide, run);
    EXPECT_EQ(wide.wide.post.shape(), narrow.post.shape());
    for (std::size_t i = 0; i < narrow.post.size(); ++i) {
      const double wanted = static_cast<double>(narrow.post[i]);
      if (layer.weights) {
        ASSERT_EQ(wide.wide.post[i], wanted);
      } else {
        ASSERT_NEAR(wide.wide.post[i], wanted, 1e-5);
      }
    }
  }
}

TEST(Float64, DisabledLayersPassDoublesOn) {
  Layer layer = dense(3, 3);
  layer.config.is_disabled = true;
  const Tensor<double> x = wide_tensor({2, 3});
  EXPECT_EQ(run(layer, x), std::vector<double>(x.values().begin(), x.values().end()));
}

}  // namespace
}  // namespace imago::layers
