// RNN: h_t = tanh(Wih · x_t + Whh · h_{t-1} + b); post = h.
//
// LSTM: for the gates i, f, g, o: sum_t = Wih · x_t + Whh · h_{t-1} + b; c_t = σ(f) · c_{t-1} + σ(i) · tanh(g);
// h_t = σ(o) · tanh c_t; post = h.
//
// Both are the same walk over the steps with another cell. The products with x are one per gate for all steps; only
// those with h depend on the step before. saved[0]: the gates after their functions, [S][gates][B][H]; the one of RNN
// is h. saved[1], LSTM only: c, [S + 1][B][H], zeros in front.

#include <algorithm>
#include <type_traits>

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

// In LayerState::scratch: the products with x, later the gradients of the sums, [gates][B][S][H]; h_{t-1} of all steps,
// [B][S][H]; the gradients of one step, [gates][B][H]; the rest, [B][H], are those of one step, too.
enum Scratch : std::size_t { kSums, kBefore, kGradGates, kGradH, kGradC, kH, kTanhC, kScratchCount };

/// One step of all gates, and what an LSTM has beside them; all [B][H].
template <class T>
struct StepOf {
  std::span<T> gates;  ///< [gates][B][H]
  std::span<T> c_before = {}, c = {}, tanh_c = {}, h = {}, grad_c = {};

  std::span<T> gate(std::size_t number, std::size_t count = 1) const {
    return gates.subspan(number * c.size(), count * c.size());
  }
};
using Step = StepOf<float>;

struct RnnCell {
  static constexpr std::size_t kGates = 1;

  /// Makes gates of the sums; returns h.
  template <class T>
  static std::span<const T> forward(const StepOf<T>& step) {
    kernels::activate(kernels::Activation::tanh, step.gates, step.gates);
    return step.gates;
  }
  /// From the gradient of h, of the output and of later steps, to that of the sums.
  static void backward(const Step& step, std::span<const float> grad_h, std::span<float> grad) {
    for (std::size_t n = 0; n < grad_h.size(); ++n) grad[n] = grad_h[n] * (1 - step.gates[n] * step.gates[n]);
  }
};

struct LstmCell {
  static constexpr std::size_t kGates = kLstmGates;

  template <class T>
  static std::span<const T> forward(const StepOf<T>& step) {
    const std::span<T> i = step.gate(0), f = step.gate(1), g = step.gate(2), o = step.gate(3);
    kernels::activate(kernels::Activation::sigmoid, step.gate(0, 2), step.gate(0, 2));
    kernels::activate(kernels::Activation::tanh, g, g);
    kernels::activate(kernels::Activation::sigmoid, o, o);
    for (std::size_t n = 0; n < i.size(); ++n) step.c[n] = f[n] * step.c_before[n] + i[n] * g[n];
    kernels::activate(kernels::Activation::tanh, step.c, step.tanh_c);
    for (std::size_t n = 0; n < i.size(); ++n) step.h[n] = o[n] * step.tanh_c[n];
    return step.h;
  }

  /// Also replaces the gradient of c, which comes from later steps alone, by that for the step before.
  static void backward(const Step& step, std::span<const float> grad_h, std::span<float> grad) {
    kernels::activate(kernels::Activation::tanh, step.c, step.tanh_c);
    const std::size_t count = grad_h.size();
    for (std::size_t n = 0; n < count; ++n) {
      const float i = step.gates[n];
      const float f = step.gates[count + n];
      const float g = step.gates[2 * count + n];
      const float o = step.gates[3 * count + n];
      const float tanh_c = step.tanh_c[n];
      const float through_c = step.grad_c[n] + grad_h[n] * o * (1 - tanh_c * tanh_c);
      grad[n] = through_c * g * i * (1 - i);
      grad[count + n] = through_c * step.c_before[n] * f * (1 - f);
      grad[2 * count + n] = through_c * i * (1 - g * g);
      grad[3 * count + n] = grad_h[n] * tanh_c * o * (1 - o);
      step.grad_c[n] = through_c * f;
    }
  }
};

template <class Cell, class T>
StepOf<T> step_at(const RecurrentSizes& s, LayerValues<T>& state, std::size_t t) {
  const std::size_t count = s.step_values();
  StepOf<T> step{.gates = state.saved[0].values().subspan(t * Cell::kGates * count, Cell::kGates * count)};
  if constexpr (Cell::kGates == kLstmGates) {
    step.c_before = state.saved[1].values().subspan(t * count, count);
    step.c = state.saved[1].values().subspan((t + 1) * count, count);
    step.tanh_c = state.scratch[kTanhC].values();
    step.h = state.scratch[kH].values();
    step.grad_c = state.scratch[kGradC].values();
  }
  return step;
}

template <class Cell>
WeightShape shape_of(const LayerConfig& config) {
  const RecurrentSizes sizes = recurrent_sizes(config);
  return {.rows = 1,
          .cols = checked_mul(Cell::kGates, gate_weights(sizes), "the weights of a layer"),
          .matrices = {{{sizes.hidden, sizes.inputs}, {sizes.hidden, sizes.hidden}}},
          .vectors = sizes.hidden,
          .repeats = Cell::kGates};
}

/// Matrices become random; biases stay 0.
template <class Cell>
void initialize(const LayerConfig& config, WeightStore& weights, std::uint64_t seed) {
  const RecurrentSizes s = recurrent_sizes(config);
  for (std::size_t gate = 0; gate < Cell::kGates; ++gate) {
    initialize_uniform(weights, seed, gate * gate_weights(s), s.hidden * (s.inputs + s.hidden));
  }
}

/// Gives what both directions use its size.
template <class Cell, class T>
void prepare(const RecurrentSizes& s, LayerValues<T>& state) {
  state.scratch.resize(kScratchCount);
  resize_to(state.scratch[kSums], {Cell::kGates, s.batch, s.steps, s.hidden});
  for (const Scratch part : {kGradH, kGradC, kH, kTanhC}) resize_to(state.scratch[part], {s.batch, s.hidden});
}

/// Calls body(row in the step, row in the sequences) for each batch entry of step t; rows are `hidden` values.
template <class Body>
void for_each_row(const RecurrentSizes& s, std::size_t t, Body&& body) {
  for (std::size_t b = 0; b < s.batch; ++b) body(b * s.hidden, (b * s.steps + t) * s.hidden);
}

template <class T>
void add(std::span<const T> from, std::type_identity_t<T>* __restrict to) {
  for (std::size_t i = 0; i < from.size(); ++i) to[i] += from[i];
}

template <class Cell, class T>
void forward(Layer& layer, const Tensor<T>& x, const Tensor<T>*, LayerState& state, Run& run) {
  const RecurrentSizes s = recurrent_sizes(layer, x.shape());
  const std::size_t count = s.step_values(), all = s.rows() * s.hidden;
  LayerValues<T>& own = state.values<T>();
  prepare<Cell>(s, own);
  own.saved.resize(2);
  resize_to(own.post, {s.batch, s.steps, s.hidden});
  resize_to(own.saved[0], {s.steps, Cell::kGates, s.batch, s.hidden});
  if constexpr (Cell::kGates == kLstmGates) {
    resize_to(own.saved[1], {s.steps + 1, s.batch, s.hidden});
    std::ranges::fill(own.saved[1].values().first(count), T{0});
  }
  for (std::size_t gate = 0; gate < Cell::kGates; ++gate) {
    linear_forward(layer, gate_at(s, gate).input, x.values(), s.rows(),
                   own.scratch[kSums].values().subspan(gate * all, all), run);
  }
  const std::span<T> post = own.post.values();
  std::span<const T> h;
  for (std::size_t t = 0; t < s.steps; ++t) {
    const StepOf<T> step = step_at<Cell>(s, own, t);
    for (std::size_t gate = 0; gate < Cell::kGates; ++gate) {
      const std::span<T> sums = step.gates.subspan(gate * count, count);
      const std::span<const T> product = own.scratch[kSums].values().subspan(gate * all, all);
      if (t == 0) {
        for_each_row(s, t, [&](std::size_t at, std::size_t row) { std::copy_n(&product[row], s.hidden, &sums[at]); });
      } else {
        linear_forward(layer, gate_at(s, gate).recurrent, h, s.batch, sums, run);
        for_each_row(s, t, [&](std::size_t at, std::size_t row) { add(product.subspan(row, s.hidden), &sums[at]); });
      }
    }
    h = Cell::forward(step);
    for_each_row(s, t, [&](std::size_t at, std::size_t row) { std::copy_n(&h[at], s.hidden, &post[row]); });
  }
}

/// h_{t-1} for every t, [B][S][H], zeros in front.
void shift_by_a_step(const RecurrentSizes& s, std::span<const float> h, std::span<float> before) {
  const std::size_t length = s.steps * s.hidden;
  for (std::size_t b = 0; b < s.batch; ++b) {
    std::ranges::fill(before.subspan(b * length, s.hidden), 0.0f);
    std::ranges::copy(h.subspan(b * length, length - s.hidden), before.subspan(b * length + s.hidden).begin());
  }
}

template <class Cell>
void backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
              LayerState& state, LayerGradient& gradient, Run&) {
  const RecurrentSizes s = recurrent_sizes(layer, x.shape());
  const std::size_t count = s.step_values(), all = s.rows() * s.hidden;
  const std::span<const float> weights = decoded_weights(*layer.weights, layer.config.scheme());
  prepare<Cell, float>(s, state);
  resize_to(state.scratch[kBefore], {s.batch, s.steps, s.hidden});
  resize_to(state.scratch[kGradGates], {Cell::kGates, s.batch, s.hidden});
  const std::span<float> grad_sums = state.scratch[kSums].values();
  const std::span<float> before = state.scratch[kBefore].values();
  const std::span<float> grad_gates = state.scratch[kGradGates].values();
  const std::span<float> grad_h = state.scratch[kGradH].values();
  const std::span<const float> grad_y = grad_output.values();

  for (const Scratch part : {kGradH, kGradC}) std::ranges::fill(state.scratch[part].values(), 0.0f);
  for (std::size_t t = s.steps; t-- > 0;) {
    for_each_row(s, t, [&](std::size_t at, std::size_t row) { add(grad_y.subspan(row, s.hidden), &grad_h[at]); });
    Cell::backward(step_at<Cell, float>(s, state, t), grad_h, grad_gates);
    for (std::size_t gate = 0; gate < Cell::kGates; ++gate) {
      const std::span<const float> grad = grad_gates.subspan(gate * count, count);
      const std::span<float> sums = grad_sums.subspan(gate * all, all);
      for_each_row(s, t, [&](std::size_t at, std::size_t row) { std::copy_n(&grad[at], s.hidden, &sums[row]); });
      if (t == 0) continue;
      const MatrixSlice matrix = gate_at(s, gate).recurrent.matrix;
      math::gemm({.m = s.batch, .n = s.hidden, .k = s.hidden}, grad, weights.subspan(matrix.first, s.hidden * s.hidden),
                 grad_h, gate == 0 ? math::Write::replace : math::Write::add);
    }
  }

  shift_by_a_step(s, state.post.values(), before);
  state.grad_input.resize(x.shape());
  for (std::size_t number = 0; number < Cell::kGates; ++number) {
    const Gate gate = gate_at(s, number);
    const std::span<const float> grad = grad_sums.subspan(number * all, all);
    linear_backward(layer, gate.recurrent, before, s.rows(), grad, gradient.weights, {});
    linear_backward(layer, gate.input, x.values(), s.rows(), grad, gradient.weights, state.grad_input.values(),
                    number > 0);
  }
}

template <class Cell>
constexpr LayerFunctions functions(LayerType type) {
  return {type, shape_of<Cell>, initialize<Cell>, forward<Cell, float>, forward<Cell, double>, backward<Cell>};
}

}  // namespace

const LayerFunctions kRnn = functions<RnnCell>(LayerType::rnn);
const LayerFunctions kLstm = functions<LstmCell>(LayerType::lstm);

}  // namespace imago::layers
