// Each of the 20 layer types in each of the 21 dtypes, alone and inside containers: built, run, trained for three
// steps.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "imago/files.h"
#include "imago/train.h"
#include "testing/every_layer.h"

namespace imago {
namespace {

using testing::layer_case;
using testing::LayerCase;

constexpr float kRate = 0.02f;

enum class Nesting { none, sequential, parallel };

Layer nest(Layer layer, Nesting nesting) {
  switch (nesting) {
    case Nesting::none: break;
    case Nesting::sequential: return sequential(layer_list(std::move(layer), residual()));
    case Nesting::parallel: return parallel("concat", layer_list(std::move(layer), residual()));
  }
  return layer;
}

using Visit = std::function<void(const std::string& path, Layer& layer, std::span<const float> gradient)>;

/// All layers with weights and their gradients.
void for_each_weights(Layer& layer, const LayerGradient& gradient, const std::string& path, const Visit& visit) {
  if (layer.weights) visit(path, layer, gradient.weights);
  std::size_t next = 0;
  const auto inner = [&](Layer& child) {
    for_each_weights(child, gradient.children.at(next), path + "." + std::to_string(next), visit);
    ++next;
  };
  for (Layer& branch : layer.branches) inner(branch);
  if (layer.filter_gate) inner(*layer.filter_gate);
  for (Layer& sub_layer : layer.sub_layers) inner(sub_layer);
  if (layer.observed) inner(*layer.observed);
}

void for_each_weights(Network& network, const Visit& visit) {
  for_each_weights(network.layers()[0], network.gradients()[0], "layer", visit);
}

bool is_unsigned(DType dtype) { return info(dtype).kind == NumberKind::unsigned_integer; }

/// Fine enough that three small steps show in the rounded weights, and able to hold all of them.
bool steps_show(DType dtype) { return info(dtype).bits >= 16 && !is_unsigned(dtype); }

void expect_finite(const Tensor<float>& tensor) {
  for (const float value : tensor.values()) ASSERT_TRUE(std::isfinite(value));
}

/// The version is what quantizing the master now gives, and what layers compute with comes from it.
void expect_fresh_version(const Layer& layer, const std::string& path) {
  const Scheme scheme = layer.config.scheme();
  WeightStore anew(layer.weights->rows(), layer.weights->cols());
  anew.set_master(layer.weights->master());
  const auto wanted = anew.morph(scheme);
  const auto got = layer.weights->morph(scheme);
  ASSERT_EQ(got == nullptr, wanted == nullptr) << path;
  if (got == nullptr) return;  // float32
  EXPECT_TRUE(std::ranges::equal(got->codes(), wanted->codes())) << path;
  EXPECT_TRUE(std::ranges::equal(got->scales(), wanted->scales())) << path;
}

/// Packed weights add up in another order than decoded ones; weights of another step would be further off.
void expect_forwards_agree(Network& network, const Tensor<float>& x) {
  const Tensor<float> used = network.forward(x);
  const Tensor<float>& trained = network.forward_training(x);
  ASSERT_EQ(used.shape().to_string(), trained.shape().to_string());
  for (std::size_t i = 0; i < used.size(); ++i) {
    ASSERT_NEAR(used[i], trained[i], 1e-5f + 1e-5f * std::abs(trained[i])) << "entry " << i;
  }
}

/// One step of SGD: what it did to every master is the spec's formula. Returns the loss before it.
double step(Network& network, Optimizer& optimizer, const Tensor<float>& x, const Tensor<float>& target) {
  Tensor<float> gradient;
  const double loss = evaluate_loss({}, network.forward_training(x), target, &gradient);
  network.clear_gradients();
  expect_finite(network.backward(gradient));
  std::map<std::string, std::vector<float>> before;
  for_each_weights(network, [&](const std::string& path, Layer& layer, std::span<const float>) {
    before[path].assign(layer.weights->master().begin(), layer.weights->master().end());
  });
  EXPECT_TRUE(optimizer.step(kRate));
  for_each_weights(network, [&](const std::string& path, Layer& layer, std::span<const float> slope) {
    for (std::size_t i = 0; i < slope.size(); ++i) {
      const float moved = before[path][i] - kRate * slope[i];
      const float wanted = is_unsigned(layer.config.dtype.dtype()) ? std::max(moved, 0.0f) : moved;
      ASSERT_NEAR(layer.weights->master()[i], wanted, 1e-6f) << path << ", weight " << i;
    }
    expect_fresh_version(layer, path);
  });
  return loss;
}

void build_run_and_train(LayerType type, DType dtype, Nesting nesting) {
  LayerCase made = layer_case(type);
  Network network(layer_list(with_dtype(nest(std::move(made.layer), nesting), dtype)), 5);
  expect_finite(network.forward(made.x));
  const Tensor<float> target = testing::random_tensor(network.forward(made.x).shape(), 9);
  Optimizer optimizer(network, {.learn_scales = false});  // so that the spec's formula is all that happens
  const double first = step(network, optimizer, made.x, target);
  step(network, optimizer, made.x, target);
  step(network, optimizer, made.x, target);
  const double last = evaluate_loss({}, network.forward(made.x), target);
  ASSERT_TRUE(std::isfinite(last));
  if (network.parameters() == 0) {
    EXPECT_EQ(last, first);
  } else if (steps_show(dtype)) {
    EXPECT_LT(last, first);
  }
  expect_forwards_agree(network, made.x);
}

class EveryLayer : public ::testing::TestWithParam<int> {};

TEST_P(EveryLayer, InEveryDtypeRunsAndTrains) {
  const auto type = static_cast<LayerType>(GetParam());
  ASSERT_EQ(layer_case(type).layer.config.type, type);
  for (const DTypeInfo& dtype : kDTypes) {
    for (const Nesting nesting : {Nesting::none, Nesting::sequential, Nesting::parallel}) {
      SCOPED_TRACE(std::string(dtype.name) + ", nesting " + std::to_string(static_cast<int>(nesting)));
      build_run_and_train(type, dtype.id, nesting);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, EveryLayer, ::testing::Range(0, kLayerTypes),
                         [](const auto& test) { return std::string(name(static_cast<LayerType>(test.param))); });

static_assert(kLayerTypes == 20 && kDTypeCount == 21);

}  // namespace
}  // namespace imago
