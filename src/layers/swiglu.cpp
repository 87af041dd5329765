// SwiGLU: post = Wd · (f(Wg · x + bg) ∗ (Wu · x + bu)) + bd, with f = SiLU, or ReLU² if that is the activation, and an
// RMS norm before Wd if there is an inner_norm.

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "base/parallel.h"
#include "imago/error.h"
#include "kernels/ops.h"
#include "layers/settings.h"

namespace imago::layers {

SwiGluParts swiglu_parts(const LayerConfig& config) {
  const std::size_t width = required(config, config.input_height, "input_height");
  const std::size_t inner = required(config, config.output_height, "output_height");
  if (!config.inner_norm.empty() && config.inner_norm.size() != inner) {
    throw UsageError(fmt::format("SwiGLU: inner_norm has {} values, not {}", config.inner_norm.size(), inner));
  }
  const std::size_t matrix = width * inner;  // of sizes below 2^31: nothing overflows
  const auto bias_at = [&](std::size_t first) { return config.no_bias ? kNoBias : 3 * matrix + first; };
  return {.width = width,
          .inner = inner,
          .gate = {.matrix = {.first = 0, .rows = inner, .cols = width}, .bias_first = bias_at(0)},
          .up = {.matrix = {.first = matrix, .rows = inner, .cols = width}, .bias_first = bias_at(inner)},
          .down = {.matrix = {.first = 2 * matrix, .rows = width, .cols = inner}, .bias_first = bias_at(2 * inner)},
          .function = config.activation == Activation::relu2 ? kernels::Activation::relu2 : kernels::Activation::silu,
          .normed = !config.inner_norm.empty()};
}

namespace {

// In LayerState::saved; kNormed only where there is a norm.
enum Saved : std::size_t { kGate, kUp, kProduct, kNormed, kSavedCount };
// In LayerState::scratch: the gradients of the three.
enum Scratch : std::size_t { kGradGate, kGradUp, kGradProduct, kScratchCount };

WeightShape weight_shape_of(const LayerConfig& config) {
  const SwiGluParts parts = swiglu_parts(config);
  return {.rows = 1,
          .cols = parts.matrix_values() + 2 * parts.inner + parts.width,
          .matrices = {{{parts.inner, parts.width}, {parts.inner, parts.width}, {parts.width, parts.inner}}},
          .vectors = 2 * parts.inner + parts.width};
}

void initialize(const LayerConfig& config, WeightStore& weights, std::uint64_t seed) {
  initialize_uniform(weights, seed, 0, swiglu_parts(config).matrix_values());
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

template <class T>
void forward(Layer& layer, const Tensor<T>& x, const Tensor<T>*, LayerState& state, Run& run) {
  const SwiGluParts parts = swiglu_parts(layer.config);
  const std::size_t rows = rows_of(layer, x, parts.width);
  const std::size_t count = checked_mul(rows, parts.inner, "SwiGLU");
  LayerValues<T>& own = state.values<T>();
  own.saved.resize(kSavedCount);
  resize_rows(own.post, x, parts.width, parts.width);
  if (rows == 0) return;

  for (const Saved part : {kGate, kUp, kProduct}) resize_to(own.saved[part], {count});
  linear_forward(layer, parts.gate, x.values(), rows, own.saved[kGate].values(), run);
  linear_forward(layer, parts.up, x.values(), rows, own.saved[kUp].values(), run);
  kernels::activate_mul(parts.function, own.saved[kGate].values(), own.saved[kUp].values(),
                        own.saved[kProduct].values());
  std::span<const T> product = own.saved[kProduct].values();
  if (parts.normed) {
    resize_to(own.saved[kNormed], {count});
    norm_rows<T>(product, layer.config.inner_norm, effective_eps(layer.config.rms_norm_eps),
                 own.saved[kNormed].values());
    product = own.saved[kNormed].values();
  }
  linear_forward(layer, parts.down, product, rows, own.post.values(), run);
}

void backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
              LayerState& state, LayerGradient& gradient, Run&) {
  const SwiGluParts parts = swiglu_parts(layer.config);
  const std::size_t rows = rows_of(layer, x, parts.width);
  state.scratch.resize(kScratchCount);
  state.grad_input.resize(x.shape());
  if (rows == 0) return;

  for (Tensor<float>& part : state.scratch) resize_to(part, {rows * parts.inner});
  const std::span<float> grad_product = state.scratch[kGradProduct].values();
  linear_backward(layer, parts.down, state.saved[parts.normed ? kNormed : kProduct].values(), rows,
                  grad_output.values(), gradient.weights, grad_product);
  if (parts.normed) {
    norm_rows_backward(state.saved[kProduct].values(), layer.config.inner_norm,
                       effective_eps(layer.config.rms_norm_eps), grad_product, grad_product);
  }
  const GateGradient gates{.gate = state.saved[kGate].values(),
                           .up = state.saved[kUp].values(),
                           .grad = grad_product,
                           .grad_gate = state.scratch[kGradGate].values(),
                           .grad_up = state.scratch[kGradUp].values()};
  const bool relu2 = parts.function == kernels::Activation::relu2;
  // 16 KiB of each array at a time: the sigmoids are still in the cache when they are used.
  constexpr std::size_t kChunk = 4096;
  parallel_for(grad_product.size(), kChunk, [&](std::size_t begin, std::size_t end) {
    for (std::size_t at = begin; at < end; at += kChunk) {
      relu2 ? relu2_backward(gates, at, std::min(end, at + kChunk))
            : silu_backward(gates, at, std::min(end, at + kChunk));
    }
  });
  linear_backward(layer, parts.gate, x.values(), rows, gates.grad_gate, gradient.weights, state.grad_input.values());
  linear_backward(layer, parts.up, x.values(), rows, gates.grad_up, gradient.weights, state.grad_input.values(), true);
}

}  // namespace

const LayerFunctions kSwiGlu{LayerType::swiglu, weight_shape_of, initialize, forward<float>, forward<double>, backward};

}  // namespace imago::layers
