// SwiGLU (spec/layers.md §4.2): post = Wd · (gate(Wg · x + bg) * (Wu · x + bu)) + bd, with an RMS norm before Wd where
// the settings have one.

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "base/parallel.h"
#include "imago/error.h"
#include "kernels/ops.h"
#include "layers/fixed_norm.h"
#include "layers/linear.h"
#include "layers/settings.h"
#include "layers/types.h"

namespace imago::layers {

namespace {

// In LayerState::saved; kNormed only where there is a norm.
enum Saved : std::size_t { kGate, kUp, kProduct, kNormed, kSavedCount };
// In LayerState::scratch: the gradients of the three.
enum Scratch : std::size_t { kGradGate, kGradUp, kGradProduct, kScratchCount };

struct Dims {
  std::size_t width, inner;
  std::size_t matrix() const noexcept { return width * inner; }
};

Dims dims_of(const LayerConfig& config) {
  const Dims dims{.width = required(config, config.input_height, "input_height"),
                  .inner = required(config, config.output_height, "output_height")};
  if (!config.inner_norm.empty() && config.inner_norm.size() != dims.inner) {
    throw UsageError(fmt::format("SwiGLU: inner_norm has {} values, not {}", config.inner_norm.size(), dims.inner));
  }
  return dims;
}

WeightShape weight_shape_of(const LayerConfig& config) {
  const Dims dims = dims_of(config);
  return {.rows = 1, .cols = 3 * dims.matrix() + 2 * dims.inner + dims.width};  // of sizes below 2^31: no overflow
}

Linear gate_of(const Dims& d) {
  return {.matrix = {.first = 0, .rows = d.inner, .cols = d.width}, .bias_first = 3 * d.matrix()};
}
Linear up_of(const Dims& d) {
  return {.matrix = {.first = d.matrix(), .rows = d.inner, .cols = d.width}, .bias_first = 3 * d.matrix() + d.inner};
}
Linear down_of(const Dims& d) {
  return {.matrix = {.first = 2 * d.matrix(), .rows = d.width, .cols = d.inner},
          .bias_first = 3 * d.matrix() + 2 * d.inner};
}

void initialize(const LayerConfig& config, WeightStore& weights, std::uint64_t seed) {
  initialize_uniform(weights, seed, 0, 3 * dims_of(config).matrix());
}

void ensure(Tensor<float>& tensor, std::size_t count) {
  if (tensor.size() != count) tensor.resize(Shape{count});
}

/// grad_gate = grad · up · f'(gate), grad_up = grad · f(gate).
struct GateGradient {
  std::span<const float> gate, up, grad;
  std::span<float> grad_gate, grad_up;
};

void silu_backward(const GateGradient& a, std::size_t begin, std::size_t end) {
  // The sigmoid comes from the vector kernels, into where grad_up will be; what is left is arithmetic on it.
  kernels::activate(kernels::Activation::sigmoid, a.gate.subspan(begin, end - begin),
                    a.grad_up.subspan(begin, end - begin));
  const float* __restrict const gate = a.gate.data();
  const float* __restrict const up = a.up.data();
  const float* __restrict const grad = a.grad.data();
  float* __restrict const grad_gate = a.grad_gate.data();
  float* __restrict const grad_up = a.grad_up.data();
  for (std::size_t i = begin; i < end; ++i) {
    const float s = grad_up[i];
    grad_gate[i] = grad[i] * up[i] * (s * (1 + gate[i] * (1 - s)));
    grad_up[i] = grad[i] * (gate[i] * s);
  }
}

void relu2_backward(const GateGradient& a, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    const float positive = std::max(a.gate[i], 0.0f);
    a.grad_gate[i] = a.grad[i] * a.up[i] * (2 * positive);
    a.grad_up[i] = a.grad[i] * (positive * positive);
  }
}

bool is_relu2(const Layer& layer) { return layer.config.activation == Activation::relu2; }

void forward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, LayerState& state, Run& run) {
  const Dims dims = dims_of(layer.config);
  const std::size_t rows = rows_of(layer, x, dims.width);
  const std::size_t count = checked_mul(rows, dims.inner, "SwiGLU");
  state.saved.resize(kSavedCount);
  resize_rows(state.post, x, dims.width, dims.width);
  if (rows == 0) return;

  for (const Saved part : {kGate, kUp, kProduct}) ensure(state.saved[part], count);
  linear_forward(layer, gate_of(dims), x.values(), rows, state.saved[kGate].values(), run);
  linear_forward(layer, up_of(dims), x.values(), rows, state.saved[kUp].values(), run);
  kernels::activate_mul(is_relu2(layer) ? kernels::Activation::relu2 : kernels::Activation::silu,
                        state.saved[kGate].values(), state.saved[kUp].values(), state.saved[kProduct].values());
  std::span<const float> product = state.saved[kProduct].values();
  if (!layer.config.inner_norm.empty()) {
    ensure(state.saved[kNormed], count);
    norm_rows(product, layer.config.inner_norm, effective_eps(layer.config.rms_norm_eps),
              state.saved[kNormed].values());
    product = state.saved[kNormed].values();
  }
  linear_forward(layer, down_of(dims), product, rows, state.post.values(), run);
}

void backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
              LayerState& state, LayerGradient& gradient, Run&) {
  const Dims dims = dims_of(layer.config);
  const std::size_t rows = rows_of(layer, x, dims.width);
  state.scratch.resize(kScratchCount);
  state.grad_input.resize(x.shape());
  if (rows == 0) return;

  for (Tensor<float>& part : state.scratch) ensure(part, rows * dims.inner);
  const std::span<float> grad_product = state.scratch[kGradProduct].values();
  const bool normed = !layer.config.inner_norm.empty();
  linear_backward(layer, down_of(dims), state.saved[normed ? kNormed : kProduct].values(), rows, grad_output.values(),
                  gradient.weights, grad_product);
  if (normed) {
    norm_rows_backward(state.saved[kProduct].values(), layer.config.inner_norm,
                       effective_eps(layer.config.rms_norm_eps), grad_product, grad_product);
  }
  const GateGradient gates{.gate = state.saved[kGate].values(),
                           .up = state.saved[kUp].values(),
                           .grad = grad_product,
                           .grad_gate = state.scratch[kGradGate].values(),
                           .grad_up = state.scratch[kGradUp].values()};
  const bool relu2 = is_relu2(layer);
  // Pieces of 16 KiB per array: the sigmoids are still near when they are used.
  constexpr std::size_t kPiece = 4096;
  parallel_for(grad_product.size(), kPiece, [&](std::size_t begin, std::size_t end) {
    for (std::size_t at = begin; at < end; at += kPiece) {
      relu2 ? relu2_backward(gates, at, std::min(end, at + kPiece))
            : silu_backward(gates, at, std::min(end, at + kPiece));
    }
  });
  linear_backward(layer, gate_of(dims), x.values(), rows, gates.grad_gate, gradient.weights, state.grad_input.values());
  linear_backward(layer, up_of(dims), x.values(), rows, gates.grad_up, gradient.weights, state.grad_input.values(),
                  true);
}

}  // namespace

const LayerFunctions kSwiGlu = {
    .type = LayerType::swiglu,
    .weight_shape = weight_shape_of,
    .initialize = initialize,
    .forward = forward,
    .backward = backward,
};

}  // namespace imago::layers
