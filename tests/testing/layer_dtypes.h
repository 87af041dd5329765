#pragma once

// A layer in each of the 21 types against the same layer in float32 whose master is what the type makes of it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "imago/format.h"
#include "imago/layer.h"
#include "layers/layer_functions.h"

namespace imago::testing {

namespace detail {

struct LayerResult {
  layers::LayerState state;
  LayerGradient gradient;
};

/// Forward, and backward of a gradient that is the result itself.
inline LayerResult run_both_ways(Layer& layer, const Tensor<float>& x) {
  LayerResult result;
  layers::Run run{.for_backward = true};
  layers::forward_layer(layer, x, nullptr, result.state, run);
  result.gradient = layers::zero_gradient(layer);
  const Tensor<float> grad_output = result.state.post;
  layers::backward_layer(layer, x, nullptr, grad_output, result.state, result.gradient, run);
  return result;
}

inline void expect_equal(std::span<const float> got, std::span<const float> wanted, const char* what) {
  EXPECT_TRUE(std::ranges::equal(got, wanted)) << what;
}

}  // namespace detail

/// `make` gives the layer with its weights, in float32. Training must agree to the bit: it works on decoded weights.
/// Packed weights add up in another order.
inline void check_all_dtypes(const std::function<Layer()>& make, const Tensor<float>& x) {
  for (const DTypeInfo& type : kDTypes) {
    SCOPED_TRACE(type.name);
    Layer typed = make();
    typed.config.dtype = type.id;
    Layer plain = make();
    plain.weights->set_master(typed.weights->active(typed.config.scheme()));

    const detail::LayerResult got = detail::run_both_ways(typed, x);
    const detail::LayerResult wanted = detail::run_both_ways(plain, x);
    detail::expect_equal(got.state.post.values(), wanted.state.post.values(), "result");
    detail::expect_equal(got.state.grad_input.values(), wanted.state.grad_input.values(), "gradient of the input");
    detail::expect_equal(got.gradient.weights, wanted.gradient.weights, "gradient of the weights");

    layers::LayerState used;
    layers::Run run;
    layers::forward_layer(typed, x, nullptr, used, run);
    float largest = 0;
    for (const float value : wanted.state.post.values()) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < used.post.size(); ++i) {
      ASSERT_NEAR(used.post[i], wanted.state.post[i], 1e-5f * largest + 1e-6f) << "packed weights, result " << i;
    }
  }
}

}  // namespace imago::testing
