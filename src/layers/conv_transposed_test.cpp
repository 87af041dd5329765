#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "imago/error.h"
#include "testing/convolution_reference.h"
#include "testing/gradient_check.h"
#include "testing/torch_layers.h"

namespace imago::layers {
namespace {

using testing::ConvolutionCase;
using testing::random_tensor;

/// PyTorch's [C][F][k…] as our [F][C][k…].
std::vector<float> filter_major(const std::vector<float>& weights, std::size_t channels, std::size_t filters) {
  const std::size_t values = weights.size() / (channels * filters);
  std::vector<float> swapped(weights.size());
  for (std::size_t c = 0; c < channels; ++c) {
    for (std::size_t f = 0; f < filters; ++f) {
      for (std::size_t k = 0; k < values; ++k) {
        swapped[(f * channels + c) * values + k] = weights[(c * filters + f) * values + k];
      }
    }
  }
  return swapped;
}

class ConvTransposedAsTorch : public ::testing::TestWithParam<std::string> {};

TEST_P(ConvTransposedAsTorch, ForwardAndBackward) {
  const auto torch = testing::find_torch_layer(GetParam());
  if (!torch) GTEST_SKIP() << testing::missing_torch_layer(GetParam());
  const int axes = static_cast<int>(torch->tensor("x").shape().rank()) - 2;
  const std::size_t channels = torch->config().at("channels");
  const std::size_t filters = torch->config().at("filters");
  testing::expect_as_torch(
      transposed_convolution(axes, testing::torch_convolution(torch->config()),
                             parse_activation(torch->config().at("activation").get<std::string>())),
      *torch, filter_major(torch->values("w.weight"), channels, filters),
      filter_major(torch->values("dw.weight"), channels, filters));
}

INSTANTIATE_TEST_SUITE_P(Shapes, ConvTransposedAsTorch,
                         ::testing::Values("convt1_s1p0k3o0", "convt1_s2p0k2o0", "convt1_s2p1k3o1", "convt2_s1p0k3o0",
                                           "convt2_s2p0k2o0", "convt2_s2p1k3o1", "convt3_s1p0k3o0", "convt3_s2p0k2o0",
                                           "convt3_s2p1k3o1"),
                         [](const auto& test) { return test.param; });

void expect_transposed_definition(Layer layer, const ConvolutionCase& e, const Shape& output) {
  testing::expect_convolution(std::move(layer), e, true, output);
}

TEST(ConvTransposed, OddShapes) {
  // Stride past the kernel: outputs that no input reaches.
  expect_transposed_definition(
      transposed_convolution(1, {.channels = 3, .filters = 4, .kernel = 2, .stride = 3, .height = 5}, Activation::tanh),
      {2, 3, 4, {1, 1, 5}, {1, 1, 14}, {1, 1, 2}, {1, 1, 3}, {0, 0, 0}}, {2, 4, 14});
  // Padding past the kernel: inputs that reach no output.
  expect_transposed_definition(
      transposed_convolution(2, {.channels = 2, .filters = 3, .kernel = 2, .padding = 3, .height = 7, .width = 8},
                             Activation::tanh),
      {2, 2, 3, {1, 7, 8}, {1, 2, 3}, {1, 2, 2}, {1, 1, 1}, {0, 3, 3}}, {2, 3, 2, 3});
  expect_transposed_definition(transposed_convolution(3, {.channels = 2,
                                                          .filters = 2,
                                                          .kernel = 3,
                                                          .stride = 2,
                                                          .padding = 1,
                                                          .output_padding = 1,
                                                          .height = 2,
                                                          .width = 3,
                                                          .depth = 2}),
                               {2, 2, 2, {2, 2, 3}, {4, 4, 6}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}}, {2, 2, 4, 4, 6});
}

TEST(ConvTransposed, GivenOutputSizesAreUsedAsTheyAre) {
  const ConvolutionShape shape{
      .channels = 2, .filters = 3, .kernel = 3, .stride = 2, .padding = 1, .height = 3, .width = 4};
  Layer larger = transposed_convolution(2, shape, Activation::tanh);
  larger.config.output_height = 10;
  larger.config.output_width = 9;
  expect_transposed_definition(std::move(larger), {2, 2, 3, {1, 3, 4}, {1, 10, 9}, {1, 3, 3}, {1, 2, 2}, {0, 1, 1}},
                               {2, 3, 10, 9});
  Layer smaller = transposed_convolution(2, shape, Activation::tanh);
  smaller.config.output_height = 2;
  expect_transposed_definition(std::move(smaller), {2, 2, 3, {1, 3, 4}, {1, 2, 7}, {1, 3, 3}, {1, 2, 2}, {0, 1, 1}},
                               {2, 3, 2, 7});
}

TEST(ConvTransposed, OneAxisIsTheWidthOrElseTheHeight) {
  const ConvolutionCase e{2, 2, 3, {1, 1, 4}, {1, 1, 7}, {1, 1, 3}, {1, 1, 2}, {0, 0, 1}};
  Layer wide = transposed_convolution(1, {.channels = 2, .filters = 3, .kernel = 3, .stride = 2, .padding = 1});
  wide.config.input_width = 4;
  wide.config.output_width = 7;
  expect_transposed_definition(std::move(wide), e, {2, 3, 7});
  Layer high = transposed_convolution(1, {.channels = 2, .filters = 3, .kernel = 3, .stride = 2, .padding = 1});
  high.config.input_height = 4;
  high.config.output_height = 7;
  expect_transposed_definition(std::move(high), e, {2, 3, 7});
}

// The original gives zeros for most of them (spec [D21]).
TEST(ConvTransposed, EveryTypeComputesWithItsDecodedWeights) {
  for (const DTypeInfo& type : kDTypes) {
    SCOPED_TRACE(type.name);
    expect_transposed_definition(
        with_dtype(transposed_convolution(2, {.channels = 2, .filters = 3, .kernel = 3, .stride = 2, .height = 3}),
                   type.id),
        {2, 2, 3, {1, 3, 3}, {1, 7, 7}, {1, 3, 3}, {1, 2, 2}, {0, 0, 0}}, {2, 3, 7, 7});
  }
}

TEST(ConvTransposed, PaddingThatLeavesNoOutputIsAnError) {
  Layer layer = transposed_convolution(1, {.channels = 1, .filters = 1, .kernel = 2, .padding = 3, .height = 4});
  testing::randomize_layer(layer, 1);
  LayerState state;
  layers::Run run;
  EXPECT_THROW(forward_layer(layer, Tensor<float>(Shape{1, 1, 4}), nullptr, state, run), UsageError);
}

}  // namespace
}  // namespace imago::layers
