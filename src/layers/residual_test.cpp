#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "layers/layer_functions.h"
#include "testing/gradient_check.h"

namespace imago::layers {
namespace {

using testing::random_tensor;

TEST(Residual, AddsTheSkip) {
  Layer layer = residual();
  const Tensor<float> x(Shape{2, 2}, {1, 2, 3, 4});
  const Tensor<float> skip(Shape{4}, {10, 20, 30, 40});
  LayerState state;
  layers::Run run;
  forward_layer(layer, x, &skip, state, run);
  EXPECT_EQ(state.post.shape(), x.shape());
  EXPECT_TRUE(std::ranges::equal(state.post.values(), std::vector<float>{11, 22, 33, 44}));
}

TEST(Residual, IsTheIdentityWithoutASkipOfItsSize) {
  Layer layer = residual();
  const Tensor<float> x = random_tensor({2, 3}, 1);
  const Tensor<float> other = random_tensor({2, 4}, 2);
  const Tensor<float> grad = random_tensor({2, 3}, 3);
  for (const Tensor<float>* skip : {static_cast<const Tensor<float>*>(nullptr), &other}) {
    LayerState state;
    layers::Run run;
    forward_layer(layer, x, skip, state, run);
    EXPECT_TRUE(std::ranges::equal(state.post.values(), x.values()));
    LayerGradient gradient = zero_gradient(layer);
    backward_layer(layer, x, skip, grad, state, gradient, run);
    EXPECT_TRUE(std::ranges::equal(state.grad_input.values(), grad.values()));
    EXPECT_EQ(state.grad_skip.size(), 0u);
  }
}

TEST(Residual, GradientsAreDifferences) {
  Layer layer = residual();
  const Tensor<float> skip = random_tensor({5, 3}, 2);
  testing::check_gradients(layer, random_tensor({5, 3}, 1), &skip);
  LayerState state;
  layers::Run run;
  const Tensor<float> x = random_tensor({5, 3}, 1);
  forward_layer(layer, x, &skip, state, run);
  LayerGradient gradient = zero_gradient(layer);
  backward_layer(layer, x, &skip, x, state, gradient, run);
  EXPECT_EQ(state.grad_skip.shape(), skip.shape());
}

TEST(Residual, HasNoWeights) { EXPECT_EQ(weight_shape(residual().config).count(), 0u); }

}  // namespace
}  // namespace imago::layers
