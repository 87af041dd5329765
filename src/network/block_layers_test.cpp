// Layers whose weights are in block formats: what they compute, and how they are trained.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "imago/error.h"
#include "imago/network.h"
#include "testing/block_layers.h"

namespace imago {
namespace {

using testing::block_layers;
using testing::BlockLayer;
using testing::random_tensor;

/// Biases and gates are 0 in fresh layers, and would hide what is done to them.
Network random_weights(Layer layer) {
  Network network(layer_list(std::move(layer)));
  network.layers()[0].weights->randomize(17, 0.1f);
  return network;
}

/// The same layer in float32, with the weights that the blocks stand for.
Network decoded(const Network& network) {
  Network copy = network.copy();
  Layer& layer = copy.layers()[0];
  layer.weights->set_master(layer.weights->active(layer.config.scheme()));
  layer.config.dtype = DType::float32;
  return copy;
}

double relative_error(const Tensor<float>& wanted, const Tensor<float>& got) {
  EXPECT_EQ(wanted.shape().to_string(), got.shape().to_string());
  double noise = 0, signal = 1e-30;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double w = static_cast<double>(wanted[i]);
    noise += (static_cast<double>(got[i]) - w) * (static_cast<double>(got[i]) - w);
    signal += w * w;
  }
  return std::sqrt(noise / signal);
}

TEST(BlockLayers, ComputeWithTheWeightsThatTheirBlocksStandFor) {
  for (const BlockFormatInfo& block : kBlockFormats) {
    for (BlockLayer& one : block_layers()) {
      Network network = random_weights(std::move(one.layer));
      EXPECT_TRUE(morph_network(network, block.id).empty());
      EXPECT_EQ(network.layers()[0].config.dtype, Format(block.id));
      Network wanted = decoded(network);
      const double error = relative_error(wanted.forward(one.x), network.forward(one.x));
      EXPECT_LE(error, 2e-6) << one.name << " in " << block.name;
    }
  }
}

TEST(BlockLayers, FastProductsRoundActivations) {
  for (const Format format : {Format(BlockFormat::q4_0), Format(BlockFormat::q6_k), Format(DType::int8)}) {
    Network network = random_weights(dense(256, 64));
    morph_network(network, format);
    const Tensor<float> x = random_tensor({1, 256}, 1), exact = network.forward(x);
    network.set_fast(true);
    const double error = relative_error(exact, network.forward(x));
    EXPECT_GT(error, 1e-5) << format.name();
    EXPECT_LT(error, 2e-2) << format.name();
    EXPECT_EQ(relative_error(network.forward(x), network.copy().forward(x)), 0);
    network.set_fast(false);
    EXPECT_EQ(relative_error(exact, network.forward(x)), 0);
  }
  Network wide = random_weights(dense(256, 64));
  const Tensor<float> x = random_tensor({1, 256}, 1), exact = wide.forward(x);
  wide.set_fast(true);
  EXPECT_EQ(relative_error(exact, wide.forward(x)), 0) << "float32 has no such product";
}

TEST(BlockLayers, GradientsAreThoseOfTheDecodedWeights) {
  for (BlockLayer& one : block_layers()) {
    Network network = random_weights(std::move(one.layer));
    morph_network(network, BlockFormat::q5_k);
    Network wanted = decoded(network);
    const auto gradients = [&](Network& of) {
      const Tensor<float> y = of.forward_training(one.x);
      of.clear_gradients();
      of.backward(random_tensor(y.shape(), 9));
      return of.gradients()[0].weights;
    };
    EXPECT_EQ(gradients(network), gradients(wanted)) << one.name;
  }
}

TEST(BlockLayers, TypesThatDoNotFitGiveWayAndAreNoted) {
  Network network(layer_list(dense(256, 64), dense(64, 10), dense(10, 4), rms_norm(4), softmax()));
  const std::vector<std::string> notes = morph_network(network, BlockFormat::q4_k);
  EXPECT_EQ(network.layers()[0].config.dtype, BlockFormat::q4_k);
  EXPECT_EQ(network.layers()[1].config.dtype, BlockFormat::q5_0);
  EXPECT_EQ(network.layers()[2].config.dtype, DType::float32);
  EXPECT_EQ(network.layers()[3].config.dtype, DType::float32);
  const std::vector<std::string> wanted = {"layer (0,0,0,1), Dense becomes q5_0: rows of 64 fit no block of q4_k",
                                           "layer (0,0,0,2), Dense stays float32: rows of 10 fit no block of q4_k",
                                           "layer (0,0,0,3), RMSNorm stays float32: it has no matrix"};
  EXPECT_EQ(notes, wanted);
  network.layers()[2].config.dtype = BlockFormat::q4_0;
  try {
    network.check();
    ADD_FAILURE();
  } catch (const ShapeError& error) {
    EXPECT_NE(std::string(error.what()).find("layer (0,0,0,2), Dense: a row of 10"), std::string::npos) << error.what();
  }
}

TEST(BlockLayers, ARuleThatMakesAnotherLayerKeepsTheTypeWhereItFits) {
  // Command 90 makes an RMSNorm, which has no matrix; 70 another Dense.
  for (const auto& [command, type] : {std::pair<float, Format>{90, DType::float32}, {70, BlockFormat::q4_0}}) {
    Layer observed = command == 70 ? swiglu(64, 64) : dense(64, 64);
    observed.config.dtype = BlockFormat::q4_0;
    Network network(layer_list(metacognition(
        std::move(observed), {{.condition = 2, .threshold = 1e9, .command = command, .self_only = true}})));
    network.forward(random_tensor({2, 64}, 3));
    EXPECT_EQ(network.layers()[0].observed->config.dtype, type) << command;
  }
}

}  // namespace
}  // namespace imago
