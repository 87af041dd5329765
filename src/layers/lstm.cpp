// For the gates i, f, g, o: sum_t = Wih · x_t + Whh · h_{t-1} + b; c_t = σ(f) · c_{t-1} + σ(i) · tanh(g);
// h_t = σ(o) · tanh c_t; post = h. saved[0]: [B][S][5H], the four sums in that order, then c_t.
//
// The products with x are one per gate for all steps; only those with h wait for each other.

#include "kernels/ops.h"
#include "layers/recurrent.h"
#include "layers/shapes.h"
#include "layers/types.h"
#include "math/products.h"

namespace imago::layers {

namespace {

constexpr std::size_t kGates = 4;
constexpr std::size_t kColumns = kGates + 1;  // of a row of saved[0], in units of H

WeightShape shape_of(const LayerConfig& config) {
  return {.rows = 1, .cols = checked_mul(kGates, gate_weights(recurrent_sizes(config)), "the weights of an LSTM")};
}

void initialize(const LayerConfig& config, WeightStore& weights, std::uint64_t seed) {
  const RecurrentSizes s = recurrent_sizes(config);
  for (std::size_t gate = 0; gate < kGates; ++gate) initialize_gate(s, weights, seed, gate * gate_weights(s));
}

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

void forward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, LayerState& state, Run& run) {
  const RecurrentSizes s = recurrent_sizes(layer, x);
  const std::size_t count = s.step_values();
  state.saved.resize(1);
  state.scratch.resize(8);  // as in backward: what is there stays
  resize_to(state.post, {s.batch, s.steps, s.hidden});
  resize_to(state.saved[0], {s.batch, s.steps, kColumns * s.hidden});
  resize_to(state.scratch[0], {kGates, s.batch, s.steps, s.hidden});
  resize_to(state.scratch[1], {kGates, s.batch, s.hidden});
  for (const int i : {3, 4, 5}) resize_to(state.scratch[i], {s.batch, s.hidden});
  const std::span<float> saved = state.saved[0].values();
  const std::span<float> products = state.scratch[0].values();  // with x
  const std::span<float> gates = state.scratch[1].values();
  const std::span<float> c = state.scratch[3].values();
  const std::span<float> h = state.scratch[4].values();
  const std::span<float> tanh_c = state.scratch[5].values();
  const GateStep step = split(gates, count);

  for (std::size_t gate = 0; gate < kGates; ++gate) {
    linear_forward(layer, gate_at(s, gate * gate_weights(s)).input, x.values(), s.rows(),
                   products.subspan(gate * s.rows() * s.hidden, s.rows() * s.hidden), run);
  }
  std::ranges::fill(c, 0.0f);
  for (std::size_t t = 0; t < s.steps; ++t) {
    for (std::size_t gate = 0; gate < kGates; ++gate) {
      const std::span<float> sums = gates.subspan(gate * count, count);
      const std::span<const float> product = products.subspan(gate * s.rows() * s.hidden, s.rows() * s.hidden);
      if (t > 0) {
        linear_forward(layer, gate_at(s, gate * gate_weights(s)).recurrent, h, s.batch, sums, run);
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
    write_block(s, c, t, kGates, saved);
    kernels::activate(kernels::Activation::tanh, c, tanh_c);
    for (std::size_t i = 0; i < count; ++i) h[i] = step.o[i] * tanh_c[i];
    for_each_sequence(s, t, s.hidden, [&](std::size_t at, std::size_t row) {
      std::ranges::copy(h.subspan(at, s.hidden), state.post.values().subspan(row).begin());
    });
  }
}

/// Of one step, [B][H] each. grad_h comes in from grad_output and later steps, grad_c from later steps alone; grad_c
/// leaves as what the step before gets. The gradients of the sums go to `grad`.
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

void backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
              LayerState& state, LayerGradient& gradient, Run&) {
  const RecurrentSizes s = recurrent_sizes(layer, x);
  const std::size_t count = s.step_values();
  const std::size_t gate_values = s.rows() * s.hidden;
  const std::span<const float> weights = decoded_weights(*layer.weights, layer.config.scheme());
  state.scratch.resize(8);
  resize_to(state.scratch[0], {kGates, s.batch, s.steps, s.hidden});
  for (const int i : {1, 2}) resize_to(state.scratch[i], {kGates, s.batch, s.hidden});
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
    for (std::size_t gate = 0; gate < kGates; ++gate) read_block(s, saved, t, gate, gates.subspan(gate * count, count));
    open_gates(step);
    read_block(s, saved, t, kGates, tanh_c);
    kernels::activate(kernels::Activation::tanh, tanh_c, tanh_c);
    if (t > 0) {
      read_block(s, saved, t - 1, kGates, c_before);
    } else {
      std::ranges::fill(c_before, 0.0f);
    }
    for_each_sequence(s, t, s.hidden, [&](std::size_t at, std::size_t row) {
      for (std::size_t i = 0; i < s.hidden; ++i) grad_h[at + i] += grad_output[row + i];
    });
    step_backward(step, tanh_c, c_before, grad_h, grad_c, split(grad_gates, count));
    for (std::size_t gate = 0; gate < kGates; ++gate) {
      const std::span<const float> grad = grad_gates.subspan(gate * count, count);
      for_each_sequence(s, t, s.hidden, [&](std::size_t at, std::size_t row) {
        std::ranges::copy(grad.subspan(at, s.hidden), grad_sums.subspan(gate * gate_values + row).begin());
      });
      if (t == 0) continue;
      const MatrixSlice matrix = gate_at(s, gate * gate_weights(s)).recurrent.matrix;
      math::gemm({.m = s.batch, .n = s.hidden, .k = s.hidden}, grad, weights.subspan(matrix.first, s.hidden * s.hidden),
                 grad_h, gate == 0 ? math::Write::replace : math::Write::add);
    }
  }

  shift_by_a_step(s, state.post.values(), h_before);
  state.grad_input.resize(x.shape());
  for (std::size_t number = 0; number < kGates; ++number) {
    const Gate gate = gate_at(s, number * gate_weights(s));
    const std::span<const float> grad = grad_sums.subspan(number * gate_values, gate_values);
    linear_backward(layer, gate.recurrent, h_before, s.rows(), grad, gradient.weights, {});
    linear_backward(layer, gate.input, x.values(), s.rows(), grad, gradient.weights, state.grad_input.values(),
                    number > 0);
  }
}

}  // namespace

const LayerFunctions kLstm{LayerType::lstm, shape_of, initialize, forward, backward};

}  // namespace imago::layers
