// The optimizer on the trees of a network: which arrays it reaches, what it leaves alone, what it remembers.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "imago/error.h"
#include "imago/train.h"

namespace imago {
namespace {

std::vector<float> copy(std::span<const float> values) { return {values.begin(), values.end()}; }

/// Two weight arrays of the grid, three inside a mixture.
Network nested_network() {
  return Network(
      layer_list(dense(3, 4, Activation::tanh),
                 mixture(dense(4, 2), layer_list(sequential(layer_list(dense(4, 5), dense(5, 2))), dense(4, 2))),
                 dense(2, 2)),
      1);
}

/// All weight arrays, outer ones first.
void collect(Layer& layer, LayerGradient& gradient, std::vector<WeightStore*>& stores,
             std::vector<std::vector<float>*>& gradients) {
  if (layer.weights) {
    stores.push_back(&*layer.weights);
    gradients.push_back(&gradient.weights);
  }
  std::size_t child = 0;
  for (Layer& branch : layer.branches) collect(branch, gradient.children.at(child++), stores, gradients);
  if (layer.filter_gate) collect(*layer.filter_gate, gradient.children.at(child++), stores, gradients);
  for (Layer& sub_layer : layer.sub_layers) collect(sub_layer, gradient.children.at(child++), stores, gradients);
}

struct Arrays {
  explicit Arrays(Network& network) {
    network.clear_gradients();
    for (std::size_t i = 0; i < network.layers().size(); ++i) {
      collect(network.layers()[i], network.gradients()[i], stores, gradients);
    }
  }
  std::vector<std::vector<float>> masters() const {
    std::vector<std::vector<float>> all;
    for (const WeightStore* store : stores) all.push_back(copy(store->master()));
    return all;
  }
  /// Gradients that differ from place to place.
  void fill(float seed) const {
    float value = seed;
    for (std::vector<float>* gradient : gradients) {
      for (float& slope : *gradient) slope = std::sin(value += 1);
    }
  }
  std::vector<WeightStore*> stores;
  std::vector<std::vector<float>*> gradients;
};

TEST(Optimizer, ReachesEveryArrayOfTheTree) {
  Network network = nested_network();
  const Arrays arrays(network);
  ASSERT_EQ(arrays.stores.size(), 6u);
  arrays.fill(0.5f);
  const std::vector<std::vector<float>> before = arrays.masters();
  Optimizer optimizer(network, {.kind = OptimizerKind::sgd});
  EXPECT_TRUE(optimizer.step(0.25f));
  EXPECT_EQ(optimizer.steps(), 1u);
  for (std::size_t a = 0; a < before.size(); ++a) {
    for (std::size_t i = 0; i < before[a].size(); ++i) {
      EXPECT_EQ(arrays.stores[a]->master()[i], before[a][i] - 0.25f * (*arrays.gradients[a])[i]) << a << ", " << i;
    }
  }
}

TEST(Optimizer, BoundsTheNormOfAllLayersTogether) {
  Network network = nested_network();
  const Arrays arrays(network);
  arrays.fill(0.5f);
  double squares = 0;
  for (const std::vector<float>* gradient : arrays.gradients) {
    for (const float slope : *gradient) squares += static_cast<double>(slope) * slope;
  }
  const std::vector<std::vector<float>> before = arrays.masters();
  Optimizer(network, {.clip_norm = 0.5f}).step(1);
  double moved = 0;
  for (std::size_t a = 0; a < before.size(); ++a) {
    for (std::size_t i = 0; i < before[a].size(); ++i) {
      const double step = before[a][i] - arrays.stores[a]->master()[i];
      EXPECT_NEAR(step, (*arrays.gradients[a])[i] * 0.5 / std::sqrt(squares), 1e-6);
      moved += step * step;
    }
  }
  EXPECT_NEAR(std::sqrt(moved), 0.5, 1e-5);
}

TEST(Optimizer, AGradientThatIsNotFiniteChangesNothing) {
  Network network = nested_network();
  const Arrays arrays(network);
  arrays.fill(0.5f);
  const std::vector<std::vector<float>> before = arrays.masters();
  Optimizer optimizer(network, {.kind = OptimizerKind::adam});
  arrays.gradients.back()->back() = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(optimizer.step(0.1f));
  EXPECT_EQ(arrays.masters(), before);
  EXPECT_EQ(optimizer.steps(), 0u);
  EXPECT_TRUE(optimizer.save().empty());
}

TEST(Optimizer, DropsVersionsAndKeepsUnsignedMastersFromFallingBelowZeroWithoutAZeroPoint) {
  Network network(layer_list(with_dtype(dense(2, 2), DType::uint8)), 1);
  network.layers()[0].weights->set_master(std::vector<float>{0.5f, 0.25f, 1, 0});
  const std::shared_ptr<const Version> version = network.layers()[0].weights->morph(DType::uint8);
  network.clear_gradients();
  network.gradients()[0].weights = {1, 0, -1, 1};
  Optimizer(network, {}).step(1);
  EXPECT_EQ(copy(network.layers()[0].weights->master()), (std::vector<float>{-0.5f, 0.25f, 2, -1}));
  EXPECT_EQ(network.layers()[0].weights->find(DType::uint8), nullptr);
  EXPECT_FLOAT_EQ(network.layers()[0].weights->morph(DType::uint8)->scale(), 3.0f / 255);  // derived anew [D12]
  EXPECT_EQ(network.layers()[0].weights->zero_point(DType::uint8), 85);

  network.layers()[0].weights->set_scale(DType::uint8, 0.01f);  // as a file of the original has it: no zero point
  network.gradients()[0].weights = {0, 1, 1, -3};
  Optimizer(network, {}).step(1);
  EXPECT_EQ(copy(network.layers()[0].weights->master()), (std::vector<float>{0, 0, 1, 2}));
}

TEST(Optimizer, KeepsAScaleThatWasGiven) {
  Network network(layer_list(with_dtype(dense(2, 1), DType::int4)), 1);
  network.layers()[0].weights->set_scale(DType::int4, 0.5f);
  network.clear_gradients();
  network.gradients()[0].weights = {-10, 10};
  Optimizer(network, {}).step(1);
  EXPECT_EQ(network.layers()[0].weights->active(DType::int4), (std::vector<float>{3.5f, -4}));  // saturated
}

TEST(Optimizer, GoesOnFromWhatItSaved) {
  for (const OptimizerKind kind : {OptimizerKind::momentum, OptimizerKind::adam, OptimizerKind::adamw}) {
    Network one = nested_network(), other = nested_network();
    const Arrays ones(one), others(other);
    Optimizer first(one, {.kind = kind});
    for (int s = 0; s < 6; ++s) {
      ones.fill(static_cast<float>(s));
      first.step(0.1f);
    }
    Optimizer second(other, {.kind = kind});
    for (int s = 0; s < 3; ++s) {
      others.fill(static_cast<float>(s));
      second.step(0.1f);
    }
    Optimizer third(other, {.kind = kind});
    third.restore(second.steps(), second.save());
    for (int s = 3; s < 6; ++s) {
      others.fill(static_cast<float>(s));
      third.step(0.1f);
    }
    EXPECT_EQ(ones.masters(), others.masters()) << name(kind);
    EXPECT_EQ(third.steps(), 6u);
  }
}

TEST(Optimizer, RefusesMomentsOfAnotherNetworkOrKind) {
  Network network = nested_network(), other(layer_list(dense(3, 5), dense(5, 2)), 1);
  const Arrays arrays(network);
  arrays.fill(1);
  Optimizer optimizer(network, {.kind = OptimizerKind::adam});
  optimizer.step(0.1f);
  EXPECT_EQ(optimizer.save().size(), 12u);
  EXPECT_THROW(Optimizer(network, {.kind = OptimizerKind::momentum}).restore(1, optimizer.save()), UsageError);
  EXPECT_THROW(Optimizer(network, {.kind = OptimizerKind::sgd}).restore(1, optimizer.save()), UsageError);
  EXPECT_THROW(Optimizer(network, {.kind = OptimizerKind::adam}).restore(1, {}), UsageError);
  EXPECT_THROW(Optimizer(other, {.kind = OptimizerKind::adam}).restore(1, optimizer.save()), ShapeError);
  EXPECT_THROW(optimizer.step(std::numeric_limits<float>::infinity()), UsageError);
  EXPECT_THROW(Optimizer(network, {.beta1 = 2}), UsageError);
}

TEST(Optimizer, LayersThatChangeStartWithoutMoments) {
  Network network(layer_list(dense(2, 2), dense(2, 2)), 1);
  Optimizer optimizer(network, {.kind = OptimizerKind::momentum, .momentum = 0.5f});
  const auto step = [&] {
    network.clear_gradients();
    for (LayerGradient& gradient : network.gradients()) gradient.weights.assign(gradient.weights.size(), 1);
    optimizer.step(1);
  };
  step();
  network.layers()[1] = dense(2, 3);
  initialize_weights(network.layers()[1], 5);
  const float kept = network.layers()[0].weights->master()[0], fresh = network.layers()[1].weights->master()[0];
  step();
  EXPECT_FLOAT_EQ(network.layers()[0].weights->master()[0], kept - 1.5f);
  EXPECT_FLOAT_EQ(network.layers()[1].weights->master()[0], fresh - 1);
}

}  // namespace
}  // namespace imago
