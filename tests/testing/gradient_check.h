#pragma once

// Gradients of any layer against finite differences of L = Σ r · post, r random. All of the layer's own weights are
// looked at, those of layers inside it too.
//
// Differences are central, of fourth order, and taken over float32 forwards: their step is wide (1/32), so that
// rounding stays near 1e-5, and the function must be smooth that far. Activations with a kink (ReLU, LeakyReLU) are for
// other tests, unless their inputs stay away from 0.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "imago/layer.h"
#include "imago/numeric.h"
#include "layers/layer_functions.h"

namespace imago::testing {

/// Uniform in [-range, range].
inline Tensor<float> random_tensor(const Shape& shape, unsigned seed, float range = 1) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-range, range);
  Tensor<float> tensor(shape);
  for (float& value : tensor.values()) value = uniform(generator);
  return tensor;
}

/// Gives the layer and all inside it weights uniform in [-range, range], biases and norms included.
inline void randomize_layer(Layer& layer, std::uint64_t seed, float range = 0.5f) {
  if (const WeightShape shape = weight_shape(layer.config); shape.count() != 0) {
    layer.weights.emplace(shape).randomize(seed, range);
  }
  const auto inner = [&](Layer& child) {
    if (!child.config.is_remote_link) randomize_layer(child, ++seed * 101, range);
  };
  for (Layer& branch : layer.branches) inner(branch);
  if (layer.filter_gate) inner(*layer.filter_gate);
  for (Layer& sub_layer : layer.sub_layers) inner(sub_layer);
  if (layer.observed) inner(*layer.observed);
}

/// The layer's result in float64 for an input and the layer's decoded weights, both in float64.
using LayerReference = std::function<std::vector<double>(std::span<const double> x, std::span<const double> weights)>;

struct GradientCheck {
  double tolerance = 2e-3;        ///< of the largest entry of each gradient
  bool of_input = true;           ///< false where the input is not a matter of more and less (token ids)
  std::size_t most = 300;         ///< entries looked at in each array, spread evenly
  double step = 1.0 / 32;         ///< of float32 differences
  layers::Run run = {};           ///< as forwards are to run: grid and seed
  LayerReference reference = {};  ///< if given: differences are those of this function, with a step of 1e-5
};

namespace detail {

inline double weighted_sum(std::span<const float> post, std::span<const float> r) {
  double sum = 0;
  for (std::size_t i = 0; i < post.size(); ++i) sum += static_cast<double>(post[i]) * static_cast<double>(r[i]);
  return sum;
}

/// (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h: an error of h⁴.
template <class Function>
double fourth_order_difference(double step, Function&& f) {
  return (8 * (f(step) - f(-step)) - (f(2 * step) - f(-2 * step))) / (12 * step);
}

/// Compares `analytic` with numeric(i) for entries spread over the array.
template <class Numeric>
void compare(const std::string& what, std::span<const float> analytic, const GradientCheck& check, Numeric&& numeric) {
  const std::size_t stride = std::max<std::size_t>(1, analytic.size() / check.most);
  std::vector<std::size_t> at;
  std::vector<double> wanted;
  double largest = 0;
  for (std::size_t i = 0; i < analytic.size(); i += stride) {
    at.push_back(i);
    wanted.push_back(numeric(i));
    largest = std::max(largest, std::abs(wanted.back()));
  }
  // Zero gradients are compared on a scale of their own; rounding of L leaves some 1e-5 of noise.
  const double allowed = check.tolerance * std::max(largest, 1e-2);
  for (std::size_t k = 0; k < at.size(); ++k) {
    ASSERT_NEAR(static_cast<double>(analytic[at[k]]), wanted[k], allowed) << what << ", entry " << at[k];
  }
}

/// Pairs every weight array inside `layer` with its gradient.
template <class Body>
void for_each_weights(Layer& layer, LayerGradient& gradient, const std::string& path, Body&& body) {
  if (layer.weights) body(path, *layer.weights, gradient.weights);
  std::size_t next = 0;
  const auto inner = [&](Layer& child) {
    ASSERT_LT(next, gradient.children.size()) << path;
    const std::string name = path + "." + std::to_string(next);
    for_each_weights(child, gradient.children[next++], name, body);
  };
  for (Layer& branch : layer.branches) inner(branch);
  if (layer.filter_gate) inner(*layer.filter_gate);
  for (Layer& sub_layer : layer.sub_layers) inner(sub_layer);
  if (layer.observed) inner(*layer.observed);
}

inline std::vector<double> widen(std::span<const float> values) { return {values.begin(), values.end()}; }

}  // namespace detail

/// The layer as one of type float64, with an input and weights that float32 cannot hold, against the reference.
inline void expect_float64(const Layer& layer, const Tensor<float>& x, const GradientCheck& check) {
  Layer wide(layer.config);
  wide.config.dtype = DType::float64;
  Tensor<double> wide_x(x.shape());
  for (std::size_t i = 0; i < x.size(); ++i) wide_x[i] = static_cast<double>(x[i]) + (check.of_input ? 1e-9 / 3 : 0);
  std::vector<double> weights;
  if (layer.weights) {
    weights = detail::widen(layer.weights->active(layer.config.scheme()));
    for (double& weight : weights) weight += 1e-9 / 7;
    wide.weights.emplace(layer.weights->shape()).set_loaded(DType::float64, std::as_bytes(std::span(weights)), 1);
  }
  const std::vector<double> wanted = check.reference(wide_x.values(), weights);
  layers::Run run = check.run;
  layers::LayerState state;
  layers::forward_layer(wide, wide_x, nullptr, state, run);
  ASSERT_EQ(state.wide.post.size(), wanted.size());
  double largest = 1;
  for (const double value : wanted) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_NEAR(state.wide.post[i], wanted[i], 1e-12 * largest) << "result " << i << " in float64";
  }
}

/// Fails the test unless grad_input, grad_skip and all weight gradients agree with differences.
inline void check_gradients(Layer& layer, const Tensor<float>& x, const Tensor<float>* skip = nullptr,
                            const GradientCheck& check = {}) {
  layers::Run run = check.run;
  run.for_backward = true;
  layers::LayerState state;
  layers::forward_layer(layer, x, skip, state, run);
  const Tensor<float> r = random_tensor(state.post.shape(), 77);
  LayerGradient gradient = layers::zero_gradient(layer);
  layers::backward_layer(layer, x, skip, r, state, gradient, run);
  ASSERT_EQ(state.grad_input.shape().to_string(), x.shape().to_string());

  layers::LayerState again;
  const auto loss = [&](const Tensor<float>& input, const Tensor<float>* with_skip) {
    layers::Run same = check.run;
    same.for_backward = true;
    layers::forward_layer(layer, input, with_skip, again, same);
    return detail::weighted_sum(again.post.values(), r.values());
  };

  if (check.reference) {
    std::vector<double> wide_x = detail::widen(x.values());
    std::vector<double> wide_w =
        layer.weights ? detail::widen(layer.weights->active(layer.config.scheme())) : std::vector<double>();
    const auto reference_loss = [&] {
      const std::vector<double> post = check.reference(wide_x, wide_w);
      double sum = 0;
      for (std::size_t i = 0; i < post.size(); ++i) sum += post[i] * static_cast<double>(r[i]);
      return sum;
    };
    const std::vector<double> post = check.reference(wide_x, wide_w);
    ASSERT_EQ(post.size(), state.post.size());
    double largest = 0;
    for (const double value : post) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < post.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(state.post[i]), post[i], 1e-4 * std::max(largest, 1e-2)) << "result " << i;
    }
    if (skip == nullptr) expect_float64(layer, x, check);
    const auto numeric = [&](std::vector<double>& values, std::size_t i) {
      constexpr double kStep = 1e-5;
      const double before = values[i];
      const auto at = [&](double offset) {
        values[i] = before + offset;
        return reference_loss();
      };
      const double difference = (at(kStep) - at(-kStep)) / (2 * kStep);
      values[i] = before;
      return difference;
    };
    if (check.of_input) {
      detail::compare("input", state.grad_input.values(), check, [&](std::size_t i) { return numeric(wide_x, i); });
    }
    detail::compare("weights", gradient.weights, check, [&](std::size_t i) { return numeric(wide_w, i); });
    return;
  }

  const auto numeric = [&](Tensor<float>& tensor, std::size_t i, const std::function<double()>& evaluate) {
    const float before = tensor[i];
    const double difference = detail::fourth_order_difference(check.step, [&](double offset) {
      tensor[i] = before + static_cast<float>(offset);
      return evaluate();
    });
    tensor[i] = before;
    return difference;
  };
  if (check.of_input) {
    Tensor<float> moved = x;
    detail::compare("input", state.grad_input.values(), check,
                    [&](std::size_t i) { return numeric(moved, i, [&] { return loss(moved, skip); }); });
  }
  if (skip != nullptr && state.grad_skip.size() == skip->size()) {
    Tensor<float> moved = *skip;
    detail::compare("skip", state.grad_skip.values(), check,
                    [&](std::size_t i) { return numeric(moved, i, [&] { return loss(x, &moved); }); });
  }
  detail::for_each_weights(
      layer, gradient, "weights", [&](const std::string& path, WeightStore& weights, std::span<const float> analytic) {
        ASSERT_EQ(analytic.size(), weights.count()) << path;
        detail::compare(path, analytic, check, [&](std::size_t i) {
          const float before = weights.master()[i];
          const double difference = detail::fourth_order_difference(check.step, [&](double offset) {
            weights.edit_master()[i] = before + static_cast<float>(offset);
            return loss(x, skip);
          });
          weights.edit_master()[i] = before;
          return difference;
        });
      });
}

}  // namespace imago::testing
