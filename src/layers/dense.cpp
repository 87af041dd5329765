// post = f(x · Wᵀ). saved[0]: z = x · Wᵀ, kept for backward unless f is linear.

#include "layers/linear.h"
#include "layers/settings.h"
#include "layers/types.h"

namespace imago::layers {

namespace {

WeightShape shape_of(const LayerConfig& config) {
  return {.rows = required(config, config.output_height, "output_height"),
          .cols = required(config, config.input_height, "input_height")};
}

void initialize(const LayerConfig&, WeightStore& weights, std::uint64_t seed) {
  initialize_uniform(weights, seed, 0, weights.count());
}

Linear matrix_of(const WeightShape& shape) { return {.matrix = {.first = 0, .rows = shape.rows, .cols = shape.cols}}; }

void forward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, LayerState& state, Run& run) {
  const WeightShape shape = shape_of(layer.config);
  const std::size_t batch = rows_of(layer, x, shape.cols);
  const Activation activation = layer.config.activation;
  resize_rows(state.post, x, shape.cols, shape.rows);
  std::span<float> z = state.post.values();
  if (run.for_backward && activation != Activation::linear) {
    state.saved.resize(1);
    state.saved[0].resize(state.post.shape());
    z = state.saved[0].values();
  }
  linear_forward(layer, matrix_of(shape), x.values(), batch, z, run);
  apply_activation(activation, z, state.post.values());
}

void backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
              LayerState& state, LayerGradient& gradient, Run&) {
  const WeightShape shape = shape_of(layer.config);
  std::span<const float> grad_z = grad_output.values();
  if (layer.config.activation != Activation::linear) {
    state.scratch.resize(1);
    state.scratch[0].resize(state.post.shape());
    activation_backward(layer.config.activation, state.saved[0].values(), grad_z, state.scratch[0].values());
    grad_z = state.scratch[0].values();
  }
  std::span<float> grad_x;
  if (state.needs_grad_input) {
    state.grad_input.resize(x.shape());
    grad_x = state.grad_input.values();
  }
  linear_backward(layer, matrix_of(shape), x.values(), rows_of(layer, x, shape.cols), grad_z, gradient.weights, grad_x);
}

}  // namespace

const LayerFunctions kDense{LayerType::dense, shape_of, initialize, forward, backward};

}  // namespace imago::layers
