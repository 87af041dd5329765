// a_t = Wih · x_t + Whh · h_{t-1} + b, h_t = tanh a_t; post = h. saved[0]: a, [B][S][H].
//
// The products with x are one for all steps; only those with h wait for each other.

#include "kernels/ops.h"
#include "layers/recurrent.h"
#include "layers/shapes.h"
#include "layers/types.h"
#include "math/products.h"

namespace imago::layers {

namespace {

WeightShape shape_of(const LayerConfig& config) { return {.rows = 1, .cols = gate_weights(recurrent_sizes(config))}; }

void initialize(const LayerConfig& config, WeightStore& weights, std::uint64_t seed) {
  initialize_gate(recurrent_sizes(config), weights, seed, 0);
}

void forward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, LayerState& state, Run& run) {
  const RecurrentSizes s = recurrent_sizes(layer, x);
  const Gate gate = gate_at(s, 0);
  state.saved.resize(1);
  state.scratch.resize(4);
  resize_to(state.post, {s.batch, s.steps, s.hidden});
  state.saved[0].resize(state.post.shape());
  for (const int i : {0, 1}) resize_to(state.scratch[i], {s.batch, s.hidden});
  const std::span<float> sums = state.saved[0].values();
  const std::span<float> h = state.scratch[0].values();
  const std::span<float> product = state.scratch[1].values();

  linear_forward(layer, gate.input, x.values(), s.rows(), sums, run);
  for (std::size_t t = 0; t < s.steps; ++t) {
    if (t > 0) {
      linear_forward(layer, gate.recurrent, h, s.batch, product, run);
      for_each_sequence(s, t, s.hidden, [&](std::size_t at, std::size_t row) {
        for (std::size_t i = 0; i < s.hidden; ++i) sums[row + i] += product[at + i];
      });
    }
    for_each_sequence(s, t, s.hidden, [&](std::size_t at, std::size_t row) {
      std::ranges::copy(sums.subspan(row, s.hidden), h.subspan(at).begin());
    });
    kernels::activate(kernels::Activation::tanh, h, h);
    for_each_sequence(s, t, s.hidden, [&](std::size_t at, std::size_t row) {
      std::ranges::copy(h.subspan(at, s.hidden), state.post.values().subspan(row).begin());
    });
  }
}

void backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
              LayerState& state, LayerGradient& gradient, Run&) {
  const RecurrentSizes s = recurrent_sizes(layer, x);
  const Gate gate = gate_at(s, 0);
  const MatrixSlice& matrix = gate.recurrent.matrix;
  const std::span<const float> recurrent =
      decoded_weights(*layer.weights, layer.config.scheme()).subspan(matrix.first, s.hidden * s.hidden);
  state.scratch.resize(4);
  for (const int i : {0, 1}) resize_to(state.scratch[i], {s.batch, s.hidden});
  for (const int i : {2, 3}) resize_to(state.scratch[i], {s.batch, s.steps, s.hidden});
  const std::span<float> grad_h = state.scratch[0].values();  // that later steps send back
  const std::span<float> grad_step = state.scratch[1].values();
  const std::span<float> grad_sums = state.scratch[2].values();
  const std::span<float> before = state.scratch[3].values();
  const std::span<const float> h = state.post.values();

  std::ranges::fill(grad_h, 0.0f);
  for (std::size_t t = s.steps; t-- > 0;) {
    for_each_sequence(s, t, s.hidden, [&](std::size_t at, std::size_t row) {
      for (std::size_t i = 0; i < s.hidden; ++i) {
        const float value = h[row + i];
        grad_step[at + i] = (grad_output[row + i] + grad_h[at + i]) * (1 - value * value);
        grad_sums[row + i] = grad_step[at + i];
      }
    });
    if (t > 0) math::gemm({.m = s.batch, .n = s.hidden, .k = s.hidden}, grad_step, recurrent, grad_h);
  }

  shift_by_a_step(s, h, before);
  linear_backward(layer, gate.recurrent, before, s.rows(), grad_sums, gradient.weights, {});
  state.grad_input.resize(x.shape());
  linear_backward(layer, gate.input, x.values(), s.rows(), grad_sums, gradient.weights, state.grad_input.values());
}

}  // namespace

const LayerFunctions kRnn{LayerType::rnn, shape_of, initialize, forward, backward};

}  // namespace imago::layers
