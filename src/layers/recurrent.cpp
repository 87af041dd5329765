// RNN: a_t = Wih · x_t + Whh · h_{t-1} + b, h_t = tanh a_t; post = h. saved[0]: a, [B][S][H].
//
// LSTM: for the gates i, f, g, o: sum_t = Wih · x_t + Whh · h_{t-1} + b; c_t = σ(f) · c_{t-1} + σ(i) · tanh(g);
// h_t = σ(o) · tanh c_t; post = h. saved[0]: [B][S][5H], the four sums in that order, then c_t.
//
// The products with x are one per gate for all steps; only those with h depend on the step before.

#include <algorithm>

#include "base/checked.h"
#include "kernels/ops.h"
#include "layers/settings.h"
#include "math/products.h"

namespace imago::layers {

RecurrentSizes recurrent_sizes(const LayerConfig& config) {
  return {.inputs = required(config, config.input_height, "input_height"),
          .hidden = required(config, config.output_height, "output_height"),
          .steps = config.seq_length <= 0 ? 1 : static_cast<std::size_t>(config.seq_length)};
}

RecurrentSizes recurrent_sizes(const Layer& layer, const Shape& x) {
  RecurrentSizes sizes = recurrent_sizes(layer.config);
  sizes.batch = rows_of(layer, x, sizes.steps * sizes.inputs);
  return sizes;
}

std::size_t gate_weights(const RecurrentSizes& s) {
  const std::size_t columns = checked_add(checked_add(s.inputs, s.hidden, "a gate"), std::size_t{1}, "a gate");
  return checked_mul(s.hidden, columns, "a gate");
}

Gate gate_at(const RecurrentSizes& s, std::size_t number) {
  const std::size_t first = number * gate_weights(s);
  const std::size_t recurrent = first + s.hidden * s.inputs;
  return {.input = {.matrix = {.first = first, .rows = s.hidden, .cols = s.inputs},
                    .bias_first = recurrent + s.hidden * s.hidden},
          .recurrent = {.matrix = {.first = recurrent, .rows = s.hidden, .cols = s.hidden}}};
}

namespace {

template <std::size_t gates>
WeightShape shape_of(const LayerConfig& config) {
  return {.rows = 1, .cols = checked_mul(gates, gate_weights(recurrent_sizes(config)), "the weights of a layer")};
}

/// Matrices become random; biases stay 0.
template <std::size_t gates>
void initialize(const LayerConfig& config, WeightStore& weights, std::uint64_t seed) {
  const RecurrentSizes s = recurrent_sizes(config);
  for (std::size_t gate = 0; gate < gates; ++gate) {
    initialize_uniform(weights, seed, gate * gate_weights(s), s.hidden * (s.inputs + s.hidden));
  }
}

/// Calls body(position in the step, position in the sequences) for each batch entry of step t; `hidden` values follow
/// each other from both. `width`: of the sequences' rows.
template <class Body>
void for_each_sequence(const RecurrentSizes& s, std::size_t t, std::size_t width, Body&& body) {
  for (std::size_t b = 0; b < s.batch; ++b) body(b * s.hidden, (b * s.steps + t) * width);
}

/// h_{t-1} for every t, [B][S][H], zeros in front.
void shift_by_a_step(const RecurrentSizes& s, std::span<const float> h, std::span<float> before) {
  const std::size_t length = s.steps * s.hidden;
  for (std::size_t b = 0; b < s.batch; ++b) {
    std::ranges::fill(before.subspan(b * length, s.hidden), 0.0f);
    std::ranges::copy(h.subspan(b * length, length - s.hidden), before.subspan(b * length + s.hidden).begin());
  }
}

// ---- RNN

void rnn_forward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, LayerState& state, Run& run) {
  const RecurrentSizes s = recurrent_sizes(layer, x.shape());
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

void rnn_backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
                  LayerState& state, LayerGradient& gradient, Run&) {
  const RecurrentSizes s = recurrent_sizes(layer, x.shape());
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

// ---- LSTM

constexpr std::size_t kColumns = kLstmGates + 1;  // of a row of saved[0], in units of H

/// One step of all gates, [4][B][H]; views into a span of that size.
struct GateStep {
  std::span<float> i, f, g, o;
};
GateStep split(std::span<float> gates, std::size_t step_values) {
  return {gates.subspan(0, step_values), gates.subspan(step_values, step_values),
          gates.subspan(2 * step_values, step_values), gates.subspan(3 * step_values, step_values)};
}

/// Sums become gates: i, f and o through the sigmoid, g through tanh.
void open_gates(const GateStep& step) {
  const std::span<float> i_and_f(step.i.data(), step.i.size() + step.f.size());
  kernels::activate(kernels::Activation::sigmoid, i_and_f, i_and_f);
  kernels::activate(kernels::Activation::tanh, step.g, step.g);
  kernels::activate(kernels::Activation::sigmoid, step.o, step.o);
}

/// One block of columns of step t of saved[0]: gate 0 … 3, or c as number 4.
void read_block(const RecurrentSizes& s, std::span<const float> saved, std::size_t t, std::size_t block,
                std::span<float> to) {
  for_each_sequence(s, t, kColumns * s.hidden, [&](std::size_t at, std::size_t row) {
    std::ranges::copy(saved.subspan(row + block * s.hidden, s.hidden), to.subspan(at).begin());
  });
}

void write_block(const RecurrentSizes& s, std::span<const float> from, std::size_t t, std::size_t block,
                 std::span<float> saved) {
  for_each_sequence(s, t, kColumns * s.hidden, [&](std::size_t at, std::size_t row) {
    std::ranges::copy(from.subspan(at, s.hidden), saved.subspan(row + block * s.hidden).begin());
  });
}

void lstm_forward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, LayerState& state, Run& run) {
  const RecurrentSizes s = recurrent_sizes(layer, x.shape());
  const std::size_t count = s.step_values();
  state.saved.resize(1);
  state.scratch.resize(8);  // as many as backward uses, so that none is dropped and made again
  resize_to(state.post, {s.batch, s.steps, s.hidden});
  resize_to(state.saved[0], {s.batch, s.steps, kColumns * s.hidden});
  resize_to(state.scratch[0], {kLstmGates, s.batch, s.steps, s.hidden});
  resize_to(state.scratch[1], {kLstmGates, s.batch, s.hidden});
  for (const int i : {3, 4, 5}) resize_to(state.scratch[i], {s.batch, s.hidden});
  const std::span<float> saved = state.saved[0].values();
  const std::span<float> products = state.scratch[0].values();  // with x
  const std::span<float> gates = state.scratch[1].values();
  const std::span<float> c = state.scratch[3].values();
  const std::span<float> h = state.scratch[4].values();
  const std::span<float> tanh_c = state.scratch[5].values();
  const GateStep step = split(gates, count);

  for (std::size_t gate = 0; gate < kLstmGates; ++gate) {
    linear_forward(layer, gate_at(s, gate).input, x.values(), s.rows(),
                   products.subspan(gate * s.rows() * s.hidden, s.rows() * s.hidden), run);
  }
  std::ranges::fill(c, 0.0f);
  for (std::size_t t = 0; t < s.steps; ++t) {
    for (std::size_t gate = 0; gate < kLstmGates; ++gate) {
      const std::span<float> sums = gates.subspan(gate * count, count);
      const std::span<const float> product = products.subspan(gate * s.rows() * s.hidden, s.rows() * s.hidden);
      if (t > 0) {
        linear_forward(layer, gate_at(s, gate).recurrent, h, s.batch, sums, run);
      } else {
        std::ranges::fill(sums, 0.0f);
      }
      for_each_sequence(s, t, s.hidden, [&](std::size_t at, std::size_t row) {
        for (std::size_t i = 0; i < s.hidden; ++i) sums[at + i] += product[row + i];
      });
      write_block(s, sums, t, gate, saved);
    }
    open_gates(step);
    for (std::size_t i = 0; i < count; ++i) c[i] = step.f[i] * c[i] + step.i[i] * step.g[i];
    write_block(s, c, t, kLstmGates, saved);
    kernels::activate(kernels::Activation::tanh, c, tanh_c);
    for (std::size_t i = 0; i < count; ++i) h[i] = step.o[i] * tanh_c[i];
    for_each_sequence(s, t, s.hidden, [&](std::size_t at, std::size_t row) {
      std::ranges::copy(h.subspan(at, s.hidden), state.post.values().subspan(row).begin());
    });
  }
}

/// One step back, all arrays [B][H]. grad_h comes from grad_output and later steps, grad_c from later steps alone and
/// is replaced by the gradient for the step before. The gradients of the sums go to `grad`.
void step_backward(const GateStep& gate, std::span<const float> tanh_c, std::span<const float> c_before,
                   std::span<const float> grad_h, std::span<float> grad_c, const GateStep& grad) {
  for (std::size_t n = 0; n < grad_h.size(); ++n) {
    const float i = gate.i[n];
    const float f = gate.f[n];
    const float g = gate.g[n];
    const float o = gate.o[n];
    const float through_c = grad_c[n] + grad_h[n] * o * (1 - tanh_c[n] * tanh_c[n]);
    grad.i[n] = through_c * g * i * (1 - i);
    grad.f[n] = through_c * c_before[n] * f * (1 - f);
    grad.g[n] = through_c * i * (1 - g * g);
    grad.o[n] = grad_h[n] * tanh_c[n] * o * (1 - o);
    grad_c[n] = through_c * f;
  }
}

void lstm_backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
                   LayerState& state, LayerGradient& gradient, Run&) {
  const RecurrentSizes s = recurrent_sizes(layer, x.shape());
  const std::size_t count = s.step_values();
  const std::size_t gate_values = s.rows() * s.hidden;
  const std::span<const float> weights = decoded_weights(*layer.weights, layer.config.scheme());
  state.scratch.resize(8);
  resize_to(state.scratch[0], {kLstmGates, s.batch, s.steps, s.hidden});
  for (const int i : {1, 2}) resize_to(state.scratch[i], {kLstmGates, s.batch, s.hidden});
  for (const int i : {3, 4, 5, 6}) resize_to(state.scratch[i], {s.batch, s.hidden});
  resize_to(state.scratch[7], {s.batch, s.steps, s.hidden});
  const std::span<const float> saved = state.saved[0].values();
  const std::span<float> grad_sums = state.scratch[0].values();
  const std::span<float> gates = state.scratch[1].values();
  const std::span<float> grad_gates = state.scratch[2].values();
  const std::span<float> tanh_c = state.scratch[3].values();
  const std::span<float> c_before = state.scratch[4].values();
  const std::span<float> grad_h = state.scratch[5].values();
  const std::span<float> grad_c = state.scratch[6].values();
  const std::span<float> h_before = state.scratch[7].values();
  const GateStep step = split(gates, count);

  std::ranges::fill(grad_h, 0.0f);
  std::ranges::fill(grad_c, 0.0f);
  for (std::size_t t = s.steps; t-- > 0;) {
    for (std::size_t gate = 0; gate < kLstmGates; ++gate)
      read_block(s, saved, t, gate, gates.subspan(gate * count, count));
    open_gates(step);
    read_block(s, saved, t, kLstmGates, tanh_c);
    kernels::activate(kernels::Activation::tanh, tanh_c, tanh_c);
    if (t > 0) {
      read_block(s, saved, t - 1, kLstmGates, c_before);
    } else {
      std::ranges::fill(c_before, 0.0f);
    }
    for_each_sequence(s, t, s.hidden, [&](std::size_t at, std::size_t row) {
      for (std::size_t i = 0; i < s.hidden; ++i) grad_h[at + i] += grad_output[row + i];
    });
    step_backward(step, tanh_c, c_before, grad_h, grad_c, split(grad_gates, count));
    for (std::size_t gate = 0; gate < kLstmGates; ++gate) {
      const std::span<const float> grad = grad_gates.subspan(gate * count, count);
      for_each_sequence(s, t, s.hidden, [&](std::size_t at, std::size_t row) {
        std::ranges::copy(grad.subspan(at, s.hidden), grad_sums.subspan(gate * gate_values + row).begin());
      });
      if (t == 0) continue;
      const MatrixSlice matrix = gate_at(s, gate).recurrent.matrix;
      math::gemm({.m = s.batch, .n = s.hidden, .k = s.hidden}, grad, weights.subspan(matrix.first, s.hidden * s.hidden),
                 grad_h, gate == 0 ? math::Write::replace : math::Write::add);
    }
  }

  shift_by_a_step(s, state.post.values(), h_before);
  state.grad_input.resize(x.shape());
  for (std::size_t number = 0; number < kLstmGates; ++number) {
    const Gate gate = gate_at(s, number);
    const std::span<const float> grad = grad_sums.subspan(number * gate_values, gate_values);
    linear_backward(layer, gate.recurrent, h_before, s.rows(), grad, gradient.weights, {});
    linear_backward(layer, gate.input, x.values(), s.rows(), grad, gradient.weights, state.grad_input.values(),
                    number > 0);
  }
}

}  // namespace

const LayerFunctions kRnn{LayerType::rnn, shape_of<1>, initialize<1>, rnn_forward, rnn_backward};
const LayerFunctions kLstm{LayerType::lstm, shape_of<kLstmGates>, initialize<kLstmGates>, lstm_forward, lstm_backward};

}  // namespace imago::layers
