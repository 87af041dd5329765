#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
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

using Doubles = std::vector<double>;

/// The spec's five steps in float64, one position at a time. Settings must be explicit: no zeros.
Doubles reference(const LayerConfig& c, std::size_t sequences, std::span<const double> x, std::span<const double> w) {
  const auto size = [](int value) { return static_cast<std::size_t>(value); };
  const std::size_t D = size(c.d_model), h = size(c.num_heads), kv = size(c.num_kv_heads), d = size(c.head_dim);
  const std::size_t Q = h * d, K = kv * d, steps = x.size() / (sequences * D);
  const double eps = c.rms_norm_eps > 0 ? c.rms_norm_eps : 1e-6;
  const double base = c.rope_freq_base > 0 ? c.rope_freq_base : 10000;
  const double *wq = w.data(), *wk = wq + Q * D, *wv = wk + K * D, *wo = wv + K * D;
  const double *bq = wo + D * Q, *bk = bq + Q, *bv = bk + K, *bo = bv + K;
  const auto linear = [&c](const double* matrix, const double* bias, const double* v, std::size_t rows,
                           std::size_t cols) {
    Doubles y(rows);
    if (!c.no_bias) y.assign(bias, bias + rows);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t i = 0; i < cols; ++i) y[r] += matrix[r * cols + i] * v[i];
    }
    return y;
  };
  const auto norm = [eps](double* v, std::size_t n, const float* weight) {
    double squares = 0;
    for (std::size_t i = 0; i < n; ++i) squares += v[i] * v[i];
    for (std::size_t i = 0; i < n; ++i)
      v[i] *= static_cast<double>(weight[i]) / std::sqrt(squares / static_cast<double>(n) + eps);
  };
  const auto prepare = [&](Doubles& row, std::size_t heads, const std::vector<float>& weights, std::size_t t) {
    for (std::size_t n = 0; n < heads; ++n) {
      double* const head = row.data() + n * d;
      if (!weights.empty()) norm(head, d, weights.data() + (weights.size() == d ? 0 : n * d));
      for (std::size_t j = 0; j < d / 2 && !c.no_rope; ++j) {
        const double angle =
            static_cast<double>(t) / std::pow(base, 2 * static_cast<double>(j) / static_cast<double>(d));
        const double a = head[j], b = head[j + d / 2];
        head[j] = a * std::cos(angle) - b * std::sin(angle);
        head[j + d / 2] = a * std::sin(angle) + b * std::cos(angle);
      }
    }
  };
  Doubles out;
  for (std::size_t s = 0; s < sequences; ++s) {
    std::vector<Doubles> keys, values;
    for (std::size_t t = 0; t < steps; ++t) {
      const double* const token = x.data() + (s * steps + t) * D;
      Doubles q = linear(wq, bq, token, Q, D);
      prepare(q, h, c.q_norm, t);
      keys.push_back(linear(wk, bk, token, K, D));
      prepare(keys.back(), kv, c.k_norm, t);
      values.push_back(linear(wv, bv, token, K, D));
      Doubles attended(Q);
      for (std::size_t n = 0; n < h; ++n) {
        const std::size_t shared = n / (h / kv) * d;
        Doubles p;
        double sum = 0;
        for (std::size_t u = 0; u <= t; ++u) {
          double score = 0;
          for (std::size_t i = 0; i < d; ++i) score += q[n * d + i] * keys[u][shared + i];
          p.push_back(std::exp(score / std::sqrt(static_cast<double>(d))));
          sum += p.back();
        }
        for (std::size_t u = 0; u <= t; ++u) {
          for (std::size_t i = 0; i < d; ++i) attended[n * d + i] += p[u] / sum * values[u][shared + i];
        }
      }
      if (!c.inner_norm.empty()) norm(attended.data(), Q, c.inner_norm.data());
      const Doubles y = linear(wo, bo, attended.data(), D, Q);
      out.insert(out.end(), y.begin(), y.end());
    }
  }
  return out;
}

Layer layer_of(const AttentionShape& shape, std::uint64_t seed = 5) {
  Layer layer = attention(shape);
  testing::randomize_layer(layer, seed);
  return layer;
}

Tensor<float> forward(Layer& layer, const Tensor<float>& x, bool for_backward = true) {
  LayerState state;
  layers::Run run{.for_backward = for_backward};
  forward_layer(layer, x, nullptr, state, run);
  return state.post;
}

std::vector<float> norm_weights(std::size_t count) {
  std::vector<float> weights(count);
  for (std::size_t i = 0; i < count; ++i) weights[i] = 0.7f + 0.1f * static_cast<float>(i % 7);
  return weights;
}

TEST(Attention, AsTorch) {
  for (const char* const name : {"mha_h4kv1d16b10000", "mha_h4kv2d8b10000", "mha_h6kv3d8b500000"}) {
    SCOPED_TRACE(name);
    const auto torch = testing::find_torch_layer(name);
    if (!torch) GTEST_SKIP() << testing::missing_torch_layer(name);
    const nlohmann::json& config = torch->config();
    testing::expect_as_torch(
        attention({.width = config.at("d_model"),
                   .heads = config.at("heads"),
                   .kv_heads = config.at("kv_heads"),
                   .head_dim = config.at("head_dim"),
                   .rope_base = config.at("rope_base")}),
        *torch, torch->concatenated({"w.q", "w.k", "w.v", "w.o", "w.b_q", "w.b_k", "w.b_v", "w.b_o"}),
        torch->concatenated({"dw.q", "dw.k", "dw.v", "dw.o", "dw.b_q", "dw.b_k", "dw.b_v", "dw.b_o"}));
  }
}

struct GradientCase {
  const char* name;
  AttentionShape shape;
  std::size_t sequences, steps;
  std::size_t q_norm = 0, k_norm = 0, inner_norm = 0;  // lengths
  bool no_rope = false, no_bias = false;
};

class AttentionGradients : public ::testing::TestWithParam<GradientCase> {};

TEST_P(AttentionGradients, AgreeWithDifferences) {
  const GradientCase& c = GetParam();
  Layer layer = layer_of(c.shape);
  layer.config.q_norm = norm_weights(c.q_norm);
  layer.config.k_norm = norm_weights(c.k_norm);
  layer.config.inner_norm = norm_weights(c.inner_norm);
  layer.config.no_rope = c.no_rope;
  layer.config.no_bias = c.no_bias;
  const Tensor<float> x = random_tensor({c.sequences, c.steps, static_cast<std::size_t>(c.shape.width)}, 3, 1.5f);
  testing::GradientCheck check;
  check.tolerance = 2e-4;
  check.most = 60;
  check.reference = [&](std::span<const double> wide_x, std::span<const double> w) {
    return reference(layer.config, c.sequences, wide_x, w);
  };
  testing::check_gradients(layer, x, nullptr, check);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionGradients,
    ::testing::Values(
        GradientCase{"plain", {.width = 12, .heads = 3, .kv_heads = 3, .head_dim = 4}, 2, 5},
        GradientCase{"grouped", {.width = 10, .heads = 6, .kv_heads = 2, .head_dim = 4, .rope_base = 500}, 3, 4},
        GradientCase{"one_key_head", {.width = 7, .heads = 3, .kv_heads = 1, .head_dim = 6}, 2, 3},
        GradientCase{"odd_head", {.width = 9, .heads = 2, .kv_heads = 1, .head_dim = 5}, 2, 6},
        GradientCase{"heads_of_one_value", {.width = 3, .heads = 3, .kv_heads = 3, .head_dim = 1}, 1, 4},
        GradientCase{"one_step", {.width = 8, .heads = 2, .kv_heads = 2, .head_dim = 4}, 3, 1},
        GradientCase{"blocks", {.width = 6, .heads = 2, .kv_heads = 1, .head_dim = 4}, 1, 67},
        GradientCase{"shared_norms", {.width = 8, .heads = 4, .kv_heads = 2, .head_dim = 6}, 2, 5, 6, 6},
        GradientCase{"own_norms", {.width = 8, .heads = 4, .kv_heads = 2, .head_dim = 3}, 2, 5, 12, 6},
        GradientCase{"query_norm_only", {.width = 8, .heads = 2, .kv_heads = 2, .head_dim = 4}, 1, 5, 4, 0},
        GradientCase{"inner_norm", {.width = 8, .heads = 3, .kv_heads = 1, .head_dim = 4}, 2, 5, 0, 0, 12},
        GradientCase{"no_rope", {.width = 8, .heads = 4, .kv_heads = 2, .head_dim = 4}, 2, 5, 4, 4, 0, true},
        GradientCase{"no_bias", {.width = 8, .heads = 2, .kv_heads = 1, .head_dim = 4}, 2, 5, 0, 0, 0, false, true},
        GradientCase{"all_norms", {.width = 5, .heads = 2, .kv_heads = 2, .head_dim = 3}, 2, 4, 3, 6, 6}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Attention, EpsilonCounts) {
  Layer layer = layer_of({.width = 8, .heads = 2, .kv_heads = 2, .head_dim = 4});
  layer.config.inner_norm = norm_weights(8);
  layer.config.rms_norm_eps = 0.3;
  const Tensor<float> x = random_tensor({1, 4, 8}, 3);
  testing::GradientCheck check;
  check.reference = [&](std::span<const double> wide_x, std::span<const double> w) {
    return reference(layer.config, 1, wide_x, w);
  };
  testing::check_gradients(layer, x, nullptr, check);
}

TEST(Attention, SizesLeftOutAreDerived) {
  Layer explicit_sizes = layer_of({.width = 12, .heads = 3, .kv_heads = 3, .head_dim = 4, .rope_base = 10000});
  Layer derived = layer_of({.width = 12, .heads = 3});
  const Tensor<float> x = random_tensor({2, 5, 12}, 1);
  EXPECT_TRUE(std::ranges::equal(forward(explicit_sizes, x).values(), forward(derived, x).values()));
  EXPECT_EQ(weight_shape(derived.config).count(), 4u * 144 + 4 * 12);
  EXPECT_EQ(weight_shape(attention({.width = 10, .heads = 6, .kv_heads = 2, .head_dim = 4}).config).count(),
            2u * 24 * 10 + 2 * 8 * 10 + 24 + 2 * 8 + 10);
}

TEST(Attention, SequencesOfABatchAreIndependent) {
  Layer layer = layer_of({.width = 12, .heads = 4, .kv_heads = 2, .head_dim = 6});
  const Tensor<float> x = random_tensor({3, 5, 12}, 1);
  const Tensor<float> together = forward(layer, x);
  EXPECT_EQ(together.shape(), (Shape{3, 5, 12}));
  for (std::size_t b = 0; b < 3; ++b) {
    const std::span<const float> part = x.values().subspan(b * 60, 60);
    const Tensor<float> alone = forward(layer, Tensor<float>({5, 12}, std::vector<float>(part.begin(), part.end())));
    EXPECT_EQ(alone.shape(), (Shape{5, 12}));
    testing::expect_close(alone.values(), together.values().subspan(b * 60, 60), 1e-6, "sequence");
  }
}

TEST(Attention, OtherShapesAreCutBySequenceLength) {
  Layer layer = layer_of({.width = 6, .heads = 2, .seq_length = 4});
  const Tensor<float> x = random_tensor({3, 4, 6}, 1);
  const Tensor<float> wanted = forward(layer, x);
  const Tensor<float> flat = forward(layer, x.reshaped({72}));
  EXPECT_EQ(flat.shape(), (Shape{3, 4, 6}));
  EXPECT_TRUE(std::ranges::equal(flat.values(), wanted.values()));
  const Tensor<float> deep = forward(layer, x.reshaped({1, 3, 4, 6}));
  EXPECT_EQ(deep.shape(), (Shape{1, 3, 4, 6}));
  EXPECT_TRUE(std::ranges::equal(deep.values(), wanted.values()));

  layer.config.seq_length = 0;  // one sequence of all positions
  EXPECT_EQ(forward(layer, x.reshaped({72})).shape(), (Shape{1, 12, 6}));
}

TEST(Attention, LaterPositionsDoNotReachBack) {
  Layer layer = layer_of({.width = 8, .heads = 2});
  Tensor<float> x = random_tensor({1, 70, 8}, 1);
  const Tensor<float> before = forward(layer, x);
  for (std::size_t i = 66 * 8; i < 67 * 8; ++i) x[i] += 1;
  const Tensor<float> after = forward(layer, x);
  EXPECT_TRUE(std::ranges::equal(before.values().first(66 * 8), after.values().first(66 * 8)));
  EXPECT_FALSE(std::ranges::equal(before.values().last(8), after.values().last(8)));
}

TEST(Attention, UseEqualsTraining) {
  Layer layer = layer_of({.width = 24, .heads = 4, .kv_heads = 2, .head_dim = 6});
  layer.config.q_norm = norm_weights(6);
  layer.config.inner_norm = norm_weights(24);
  for (const std::size_t steps : {std::size_t{1}, std::size_t{9}, std::size_t{130}}) {
    const Tensor<float> x = random_tensor({2, steps, 24}, 1);
    testing::expect_close(forward(layer, x, false).values(), forward(layer, x, true).values(), 1e-5, "result");
  }
}

TEST(Attention, AllTypes) {
  testing::check_all_dtypes([] { return layer_of({.width = 12, .heads = 4, .kv_heads = 2, .head_dim = 6}); },
                            random_tensor({2, 7, 12}, 1));
}

TEST(Attention, StateFollowsChangesOfShapeAndSettings) {
  Layer layer = layer_of({.width = 8, .heads = 2});
  LayerState state;
  layers::Run run{.for_backward = true};
  for (const std::size_t steps : {std::size_t{3}, std::size_t{80}, std::size_t{5}}) {
    for (const double base : {0.0, 100.0}) {
      layer.config.rope_freq_base = base;
      const Tensor<float> x = random_tensor({2, steps, 8}, 1);
      forward_layer(layer, x, nullptr, state, run);
      LayerGradient gradient = zero_gradient(layer);
      backward_layer(layer, x, nullptr, x, state, gradient, run);

      LayerState fresh;
      LayerGradient fresh_gradient = zero_gradient(layer);
      forward_layer(layer, x, nullptr, fresh, run);
      backward_layer(layer, x, nullptr, x, fresh, fresh_gradient, run);
      EXPECT_TRUE(std::ranges::equal(state.post.values(), fresh.post.values()));
      EXPECT_TRUE(std::ranges::equal(state.grad_input.values(), fresh.grad_input.values()));
      EXPECT_EQ(gradient.weights, fresh_gradient.weights);
    }
  }
}

TEST(Attention, MemoryStaysWhereItIs) {
  Layer layer = layer_of({.width = 8, .heads = 2});
  LayerState state;
  layers::Run run{.for_backward = true};
  const Tensor<float> x = random_tensor({2, 9, 8}, 1);
  LayerGradient gradient = zero_gradient(layer);
  const auto addresses = [&] {
    forward_layer(layer, x, nullptr, state, run);
    backward_layer(layer, x, nullptr, x, state, gradient, run);
    std::vector<const void*> found = {state.post.values().data(), state.grad_input.values().data(),
                                      state.attention_table.get()};
    for (const Tensor<float>& tensor : state.saved) found.push_back(tensor.values().data());
    for (const Tensor<float>& tensor : state.scratch) found.push_back(tensor.values().data());
    return found;
  };
  EXPECT_EQ(addresses(), addresses());
}

TEST(Attention, BackwardNeedsAForwardForTraining) {
  Layer layer = layer_of({.width = 8, .heads = 2});
  LayerState state;
  layers::Run run{.for_backward = false};
  const Tensor<float> x = random_tensor({2, 9, 8}, 1);
  forward_layer(layer, x, nullptr, state, run);
  LayerGradient gradient = zero_gradient(layer);
  EXPECT_THROW(backward_layer(layer, x, nullptr, x, state, gradient, run), UsageError);
}

TEST(Attention, EmptyInputs) {
  Layer layer = layer_of({.width = 8, .heads = 2});
  for (const Shape& shape : {Shape{0, 5, 8}, Shape{3, 0, 8}, Shape{0, 8}, Shape{0}}) {
    LayerState state;
    layers::Run run{.for_backward = true};
    const Tensor<float> x(shape);
    forward_layer(layer, x, nullptr, state, run);
    EXPECT_EQ(state.post.size(), 0u);
    LayerGradient gradient = zero_gradient(layer);
    backward_layer(layer, x, nullptr, state.post, state, gradient, run);
    EXPECT_EQ(state.grad_input.shape(), shape);
    EXPECT_TRUE(std::ranges::all_of(gradient.weights, [](float g) { return g == 0; }));
  }
}

TEST(Attention, FreshWeightsHaveNoBias) {
  Layer layer = attention({.width = 8, .heads = 2, .kv_heads = 1});
  initialize_weights(layer, 3);
  const std::span<const float> master = layer.weights->master();
  const std::size_t matrices = 2 * 64 + 2 * 4 * 8;
  EXPECT_EQ(master.size(), matrices + 8 + 4 + 4 + 8);
  EXPECT_TRUE(std::ranges::all_of(master.first(matrices), [](float w) { return w != 0 && std::abs(w) <= 0.1f; }));
  EXPECT_TRUE(std::ranges::all_of(master.subspan(matrices), [](float w) { return w == 0; }));
}

template <class Thrown, class Action>
void expect_error(const std::string& part, Action&& action) {
  try {
    action();
    FAIL() << "no error about " << part;
  } catch (const Thrown& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Attention, SettingsThatMakeNoLayer) {
  const auto refuse = [](const std::string& part, auto&& change) {
    LayerConfig config = attention({.width = 12, .heads = 4, .kv_heads = 2}).config;
    change(config);
    expect_error<UsageError>(part, [&] { weight_shape(config); });
  };
  refuse("d_model", [](LayerConfig& c) { c.d_model = 0; });
  refuse("num_heads", [](LayerConfig& c) { c.num_heads = -4; });
  refuse("num_heads 4 is not a multiple of num_kv_heads 3", [](LayerConfig& c) { c.num_kv_heads = 3; });
  refuse("d_model 12 is not a multiple of num_heads 5", [](LayerConfig& c) { c.num_heads = c.num_kv_heads = 5; });
  refuse("head_dim", [](LayerConfig& c) { c.head_dim = -1; });
  refuse("query_dim is 13", [](LayerConfig& c) { c.query_dim = 13; });
  refuse("q_norm has 5", [](LayerConfig& c) { c.q_norm.resize(5); });
  refuse("k_norm has 12", [](LayerConfig& c) { c.k_norm.resize(12); });
  refuse("inner_norm has 3", [](LayerConfig& c) { c.inner_norm.resize(3); });
  refuse("rope_freq_base", [](LayerConfig& c) { c.rope_freq_base = std::numeric_limits<double>::infinity(); });
  LayerConfig huge = attention({.width = 2'000'000'000, .heads = 2'000'000'000, .head_dim = 2'000'000'000}).config;
  EXPECT_THROW(weight_shape(huge), ShapeError);
}

TEST(Attention, InputsThatDoNotFit) {
  Layer layer = layer_of({.width = 12, .heads = 4, .seq_length = 5});
  layer.at = {.z = 0, .y = 1, .x = 2, .l = 3};
  expect_error<ShapeError>("layer (0,1,2,3)", [&] { forward(layer, random_tensor({2, 5, 11}, 1)); });
  expect_error<ShapeError>("sequences of 5", [&] { forward(layer, random_tensor({48}, 1)); });
}

}  // namespace
}  // namespace imago::layers
