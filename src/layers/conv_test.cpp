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

class ConvAsTorch : public ::testing::TestWithParam<std::string> {};

TEST_P(ConvAsTorch, ForwardAndBackward) {
  const auto torch = testing::find_torch_layer(GetParam());
  if (!torch) GTEST_SKIP() << testing::missing_torch_layer(GetParam());
  const int axes = static_cast<int>(torch->tensor("x").shape().rank()) - 2;
  testing::expect_as_torch(convolution(axes, testing::torch_convolution(torch->config()),
                                       parse_activation(torch->config().at("activation").get<std::string>())),
                           *torch, torch->values("w.weight"), torch->values("dw.weight"));
}

INSTANTIATE_TEST_SUITE_P(Shapes, ConvAsTorch,
                         ::testing::Values("cnn1_s1p0k3", "cnn1_s1p2k2", "cnn1_s2p1k3", "cnn2_s1p0k3", "cnn2_s1p2k2",
                                           "cnn2_s2p1k3", "cnn3_s1p0k3", "cnn3_s1p2k2", "cnn3_s2p1k3"),
                         [](const auto& test) { return test.param; });

void expect_definition(Layer layer, const ConvolutionCase& e, const Shape& output) {
  testing::expect_convolution(std::move(layer), e, false, output);
}

Layer sized(Layer layer, int output_height, int output_width = 0, int output_depth = 0) {
  layer.config.output_height = output_height;
  layer.config.output_width = output_width;
  layer.config.output_depth = output_depth;
  return layer;
}

TEST(Conv, OddShapes) {
  expect_definition(
      convolution(1, {.channels = 3, .filters = 4, .kernel = 2, .stride = 3, .height = 11}, Activation::tanh),
      {2, 3, 4, {1, 1, 11}, {1, 1, 4}, {1, 1, 2}, {1, 1, 3}, {0, 0, 0}}, {2, 4, 4});
  expect_definition(convolution(2, {.channels = 2, .filters = 3, .kernel = 2, .padding = 3, .height = 4, .width = 6},
                                Activation::tanh),
                    {2, 2, 3, {1, 4, 6}, {1, 9, 11}, {1, 2, 2}, {1, 1, 1}, {0, 3, 3}}, {2, 3, 9, 11});
  expect_definition(convolution(2, {.channels = 2, .filters = 3, .kernel = 3, .stride = 2, .padding = 1, .height = 7}),
                    {3, 2, 3, {1, 7, 7}, {1, 4, 4}, {1, 3, 3}, {1, 2, 2}, {0, 1, 1}}, {3, 3, 4, 4});
  expect_definition(
      convolution(
          3,
          {.channels = 2, .filters = 2, .kernel = 2, .stride = 2, .padding = 1, .height = 4, .width = 3, .depth = 5}),
      {2, 2, 2, {5, 4, 3}, {3, 3, 2}, {2, 2, 2}, {2, 2, 2}, {1, 1, 1}}, {2, 2, 3, 3, 2});
}

TEST(Conv, GivenOutputSizesAreUsedAsTheyAre) {
  const ConvolutionShape shape{.channels = 2, .filters = 3, .kernel = 3, .padding = 1, .height = 6, .width = 5};
  expect_definition(sized(convolution(2, shape, Activation::tanh), 9, 8),
                    {2, 2, 3, {1, 6, 5}, {1, 9, 8}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}}, {2, 3, 9, 8});
  expect_definition(sized(convolution(2, shape, Activation::tanh), 2, 0),
                    {2, 2, 3, {1, 6, 5}, {1, 2, 5}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}}, {2, 3, 2, 5});
  expect_definition(sized(convolution(1, {.channels = 2, .filters = 2, .kernel = 3, .stride = 2, .height = 12}), 2),
                    {1, 2, 2, {1, 1, 12}, {1, 1, 2}, {1, 1, 3}, {1, 1, 2}, {0, 0, 0}}, {1, 2, 2});
}

TEST(Conv, UnsetKernelAndStrideAreOne) {
  Layer layer = convolution(2, {.channels = 3, .filters = 2, .kernel = 0, .stride = 0, .height = 3});
  EXPECT_EQ(weight_shape(layer.config).count(), 6u);
  expect_definition(std::move(layer), {2, 3, 2, {1, 3, 3}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}}, {2, 2, 3, 3});
}

TEST(Conv, EveryTypeComputesWithItsDecodedWeights) {
  for (const DTypeInfo& type : kDTypes) {
    SCOPED_TRACE(type.name);
    expect_definition(
        with_dtype(convolution(2, {.channels = 2, .filters = 3, .kernel = 3, .padding = 1, .height = 5}), type.id),
        {2, 2, 3, {1, 5, 5}, {1, 5, 5}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}}, {2, 3, 5, 5});
  }
}

TEST(Conv, ErrorsNameTheTrouble) {
  const auto run_with = [](Layer layer, const Shape& input) {
    testing::randomize_layer(layer, 1);
    LayerState state;
    layers::Run run;
    forward_layer(layer, Tensor<float>(input), nullptr, state, run);
  };
  const ConvolutionShape good{.channels = 2, .filters = 3, .kernel = 3, .height = 5};
  EXPECT_NO_THROW(run_with(convolution(2, good), {1, 2, 5, 5}));
  EXPECT_THROW(run_with(convolution(2, good), {1, 2, 5, 4}), ShapeError);
  ConvolutionShape bad = good;
  bad.height = 2;  // smaller than the kernel
  EXPECT_THROW(run_with(convolution(2, bad), {1, 2, 2, 2}), UsageError);
  bad.height = 0;
  EXPECT_THROW(run_with(convolution(2, bad), {1, 2, 2, 2}), UsageError);
  bad = good;
  bad.stride = -1;
  EXPECT_THROW(run_with(convolution(2, bad), {1, 2, 5, 5}), UsageError);
  bad = good;
  bad.filters = 0;
  EXPECT_THROW(weight_shape(convolution(2, bad).config), UsageError);
  bad = good;
  bad.channels = bad.filters = bad.kernel = 1 << 30;
  EXPECT_THROW(weight_shape(convolution(3, bad).config), ShapeError);
}

}  // namespace
}  // namespace imago::layers
