#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "imago/error.h"
#include "imago/network.h"
#include "testing/wide_network.h"

namespace imago {
namespace {

using testing::random_network;
using testing::random_tensor;

/// Every kind of place where weights can be.
Network network_with_inner_layers() {
  Layer meta = metacognition(dense(4, 4), {});
  meta.meta_network = std::make_unique<Network>(layer_list(dense(6, 1)));
  return random_network(layer_list(dense(3, 4), sequential(layer_list(dense(4, 4), residual(), rms_norm(4))),
                                   mixture(dense(4, 2), layer_list(dense(4, 4), dense(4, 4))), std::move(meta),
                                   softmax()));
}

std::vector<const Layer*> weighted(const Network& network) {
  const auto layers = network.layers();
  return {&layers[0],
          &layers[1].sub_layers[0],
          &layers[1].sub_layers[2],
          layers[2].filter_gate.get(),
          &layers[2].branches[0],
          &layers[2].branches[1],
          layers[3].observed.get(),
          &std::as_const(*layers[3].meta_network).layers()[0]};
}

TEST(MorphNetwork, ReachesEveryLayerWithWeights) {
  Network network = network_with_inner_layers();
  std::vector<std::vector<float>> masters;
  for (const Layer* layer : weighted(network))
    masters.emplace_back(layer->weights->master().begin(), layer->weights->master().end());
  morph_network(network, DType::int4);
  std::size_t i = 0;
  for (const Layer* layer : weighted(network)) {
    EXPECT_EQ(layer->config.dtype, DType::int4) << i;
    EXPECT_NE(layer->weights->find(DType::int4), nullptr) << i;
    EXPECT_TRUE(std::ranges::equal(layer->weights->master(), masters[i])) << i;
    ++i;
  }
  EXPECT_EQ(std::as_const(network).layers()[4].config.dtype, DType::float32);  // Softmax has no weights
}

TEST(MorphNetwork, ResultsAreThoseOfTheDecodedWeights) {
  for (const DType dtype : {DType::int8, DType::ternary, DType::fp8e4m3, DType::float32}) {
    Network network =
        random_network(layer_list(sequential(layer_list(dense(8, 8, Activation::tanh), residual())), dense(8, 4)));
    morph_network(network, dtype);
    testing::WideNetwork wide(network);
    const Tensor<float> x = random_tensor({3, 8}, 1);
    testing::expect_close(network.forward(x).values(), wide.run(testing::widen(x)).values, 1e-5,
                          std::string(name(dtype)));
  }
}

TEST(MorphNetwork, KeepsWhereScalesSit) {
  Network network = random_network(layer_list(dense(32, 4)));
  network.layers()[0].config.granularity = Granularity::row;
  morph_network(network, DType::int8);
  const Layer& layer = std::as_const(network).layers()[0];
  EXPECT_NE(layer.weights->find(layer.config.scheme()), nullptr);
  EXPECT_EQ(layer.weights->find(layer.config.scheme())->scales().size(), 4u);
}

TEST(MorphNetwork, AFailureChangesNoSetting) {
  Network network = random_network(layer_list(dense(4, 4), dense(4, 4)));
  network.layers()[1].config.granularity = Granularity::group;
  network.layers()[1].config.group = 32;  // rows of 4 hold no group of 32
  EXPECT_THROW(morph_network(network, DType::int8), ShapeError);
  EXPECT_EQ(std::as_const(network).layers()[0].config.dtype, DType::float32);
}

TEST(MorphNetwork, TakesASchemeWithGranularityAndCalibrator) {
  for (const Calibrator calibrator : {Calibrator::absmax, Calibrator::mse}) {
    Scheme scheme(DType::int4);
    scheme.granularity = Granularity::row;
    scheme.calibrator = calibrator;
    Network network = network_with_inner_layers();
    std::vector<std::vector<float>> wanted, masters;
    for (const Layer* layer : weighted(network)) {
      wanted.push_back(layer->weights->active(scheme));
      masters.emplace_back(layer->weights->master().begin(), layer->weights->master().end());
    }
    morph_network(network, scheme);
    std::size_t i = 0;
    for (const Layer* layer : weighted(network)) {
      EXPECT_EQ(layer->config.granularity, Granularity::row);
      EXPECT_EQ(layer->weights->active(layer->config.scheme()), wanted[i]) << i;
      EXPECT_TRUE(std::ranges::equal(layer->weights->master(), masters[i])) << i;
      ++i;
    }
  }
}

TEST(MorphNetwork, WhatDoesNotFitChangesNothing) {
  Network network = network_with_inner_layers();
  Scheme groups(DType::int8);
  groups.granularity = Granularity::group;
  groups.group = 32;
  EXPECT_THROW(morph_network(network, groups), ShapeError);
  EXPECT_EQ(network.layers()[0].config.dtype, DType::float32);
  EXPECT_EQ(network.layers()[0].config.granularity, Granularity::tensor);
}

TEST(CopyOfANetwork, ComputesTheSameAndIsIndependent) {
  Network network = network_with_inner_layers();
  network.id = "original";
  morph_network(network, DType::int8);
  Network twin = network.copy();
  EXPECT_EQ(twin.id, "original");
  const std::vector<const Layer*> from = weighted(network), to = weighted(twin);
  for (std::size_t i = 0; i < from.size(); ++i) {
    EXPECT_NE(from[i], to[i]);
    EXPECT_EQ(to[i]->config.dtype, DType::int8);
    EXPECT_TRUE(std::ranges::equal(from[i]->weights->master(), to[i]->weights->master())) << i;
  }
  // Its input is not what Metacognition shows it, so it is left out where the networks run.
  network.layers()[3].meta_network.reset();
  twin.layers()[3].meta_network.reset();
  const Tensor<float> x = random_tensor({2, 3}, 1);
  const auto run = [&](Network& any) {
    const Tensor<float>& y = any.forward(x);
    return std::vector<float>(y.values().begin(), y.values().end());
  };
  const std::vector<float> wanted = run(network);
  EXPECT_EQ(run(twin), wanted);
  for (Layer& layer : twin.layers()) {
    if (layer.weights) std::ranges::fill(layer.weights->edit_master(), 0.0f);
  }
  EXPECT_NE(run(twin), wanted);
  EXPECT_EQ(run(network), wanted);
}

}  // namespace
}  // namespace imago
