// RNN and LSTM.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "imago/error.h"
#include "testing/gradient_check.h"
#include "testing/torch_layers.h"

namespace imago::layers {
namespace {

using testing::random_tensor;

TEST(Rnn, AsTorch) {
  const auto torch = testing::find_torch_layer("rnn");
  if (!torch) GTEST_SKIP() << testing::missing_torch_layer("rnn");
  const nlohmann::json& config = torch->config();
  testing::expect_as_torch(rnn(config.at("in"), config.at("hidden"), config.at("seq")), *torch,
                           torch->concatenated({"w.ih", "w.hh", "w.b"}),
                           torch->concatenated({"dw.ih", "dw.hh", "dw.b"}));
}

TEST(Lstm, AsTorch) {
  const auto torch = testing::find_torch_layer("lstm");
  if (!torch) GTEST_SKIP() << testing::missing_torch_layer("lstm");
  const nlohmann::json& config = torch->config();
  std::vector<std::string> weights;
  std::vector<std::string> gradients;
  for (const char* gate : {"i", "f", "g", "o"}) {
    for (const char* part : {"W", "U", "b"}) {
      weights.push_back(std::string("w.") + part + gate);
      gradients.push_back(std::string("dw.") + part + gate);
    }
  }
  testing::expect_as_torch(lstm(config.at("in"), config.at("hidden"), config.at("seq")), *torch,
                           torch->concatenated(weights), torch->concatenated(gradients));
}

struct Sizes {
  std::size_t batch, steps, inputs, hidden;
};

/// The sum of a gate whose weights begin at w, for one unit.
double gate_sum(const Sizes& s, std::span<const double> w, std::span<const double> x, std::span<const double> h,
                std::size_t unit) {
  double sum = w[s.hidden * (s.inputs + s.hidden) + unit];
  for (std::size_t i = 0; i < s.inputs; ++i) sum += w[unit * s.inputs + i] * x[i];
  for (std::size_t i = 0; i < s.hidden; ++i) sum += w[s.hidden * s.inputs + unit * s.hidden + i] * h[i];
  return sum;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// Either layer from its definition.
std::vector<double> reference(const Sizes& s, bool is_lstm, std::span<const double> x, std::span<const double> w) {
  const std::size_t gate = s.hidden * (s.inputs + s.hidden + 1);
  std::vector<double> result;
  for (std::size_t b = 0; b < s.batch; ++b) {
    std::vector<double> h(s.hidden);
    std::vector<double> c(s.hidden);
    for (std::size_t t = 0; t < s.steps; ++t) {
      const std::span<const double> at = x.subspan((b * s.steps + t) * s.inputs, s.inputs);
      std::vector<double> next(s.hidden);
      for (std::size_t u = 0; u < s.hidden; ++u) {
        if (!is_lstm) {
          next[u] = std::tanh(gate_sum(s, w, at, h, u));
          continue;
        }
        const auto sum = [&](std::size_t number) { return gate_sum(s, w.subspan(number * gate), at, h, u); };
        c[u] = sigmoid(sum(1)) * c[u] + sigmoid(sum(0)) * std::tanh(sum(2));
        next[u] = sigmoid(sum(3)) * std::tanh(c[u]);
      }
      h = next;
      result.insert(result.end(), h.begin(), h.end());
    }
  }
  return result;
}

void expect_definition(Layer layer, const Sizes& s) {
  testing::randomize_layer(layer, 5);
  const bool is_lstm = layer.config.type == LayerType::lstm;
  testing::GradientCheck check;
  check.most = 60;
  check.reference = [&](std::span<const double> x, std::span<const double> w) { return reference(s, is_lstm, x, w); };
  const Tensor<float> x = random_tensor({s.batch, s.steps, s.inputs}, 6);
  testing::check_gradients(layer, x, nullptr, check);

  // As a network that is used: packed weights.
  LayerState state;
  layers::Run run;
  forward_layer(layer, x, nullptr, state, run);
  EXPECT_EQ(state.post.shape(), (Shape{s.batch, s.steps, s.hidden}));
  LayerState trained;
  run.for_backward = true;
  forward_layer(layer, x, nullptr, trained, run);
  testing::expect_close(state.post.values(), trained.post.values(), 1e-4, "used and trained");
}

TEST(Rnn, FollowsTheDefinition) {
  expect_definition(rnn(5, 7, 4), {3, 4, 5, 7});
  expect_definition(rnn(1, 1, 1), {1, 1, 1, 1});
  expect_definition(rnn(17, 33, 6), {5, 6, 17, 33});
  expect_definition(rnn(3, 2, 0), {4, 1, 3, 2});  // steps not set: one
}

TEST(Lstm, FollowsTheDefinition) {
  expect_definition(lstm(5, 7, 4), {3, 4, 5, 7});
  expect_definition(lstm(1, 1, 1), {1, 1, 1, 1});
  expect_definition(lstm(17, 33, 5), {2, 5, 17, 33});
  expect_definition(lstm(3, 2, 0), {4, 1, 3, 2});
}

TEST(Rnn, EveryTypeComputesWithItsDecodedWeights) {
  for (const DTypeInfo& type : kDTypes) {
    SCOPED_TRACE(type.name);
    expect_definition(with_dtype(rnn(5, 6, 3), type.id), {2, 3, 5, 6});
  }
}

TEST(Lstm, EveryTypeComputesWithItsDecodedWeights) {
  for (const DTypeInfo& type : kDTypes) {
    SCOPED_TRACE(type.name);
    expect_definition(with_dtype(lstm(5, 6, 3), type.id), {2, 3, 5, 6});
  }
}

TEST(Lstm, SavesGatesAndCells) {
  Layer layer = lstm(2, 1, 2);
  testing::randomize_layer(layer, 3);
  const Tensor<float> x = random_tensor({1, 2, 2}, 4);
  LayerState state;
  layers::Run run{.for_backward = true};
  forward_layer(layer, x, nullptr, state, run);
  ASSERT_EQ(state.saved.at(0).shape(), (Shape{2, 4, 1, 1}));
  ASSERT_EQ(state.saved.at(1).shape(), (Shape{3, 1, 1}));
  // i, f, g, o of step 0, where h and c are 0.
  const std::span<const float> w = layer.weights->master();
  for (std::size_t gate = 0; gate < 4; ++gate) {
    const float sum = w[gate * 4] * x[0] + w[gate * 4 + 1] * x[1] + w[gate * 4 + 3];
    EXPECT_NEAR(state.saved[0][gate], gate == 2 ? std::tanh(double{sum}) : sigmoid(sum), 1e-6);
  }
  EXPECT_EQ(state.saved[1][0], 0);
  EXPECT_NEAR(state.saved[1][1], double{state.saved[0][0]} * double{state.saved[0][2]}, 1e-6);
}

TEST(Recurrent, FreshBiasesAreZero) {
  Layer layer = lstm(3, 4, 2);
  initialize_weights(layer, 9);
  const std::span<const float> w = layer.weights->master();
  const std::size_t gate = 4 * (3 + 4 + 1);
  for (std::size_t i = 0; i < w.size(); ++i) {
    EXPECT_EQ(w[i] == 0, i % gate >= 28) << i;
    EXPECT_LE(std::abs(w[i]), 0.1f);
  }
}

TEST(Recurrent, InputMustBeWholeSequences) {
  Layer layer = rnn(3, 4, 5);
  testing::randomize_layer(layer, 1);
  LayerState state;
  layers::Run run;
  EXPECT_THROW(forward_layer(layer, Tensor<float>(Shape{2, 5, 2}), nullptr, state, run), ShapeError);
  EXPECT_THROW(weight_shape(rnn(0, 4, 5).config), UsageError);
}

}  // namespace
}  // namespace imago::layers
