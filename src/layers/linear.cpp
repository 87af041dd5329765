// Dense, and what other layers with matrices share with it.

#include "layers/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "imago/error.h"
#include "kernels/ops.h"
#include "layers/settings.h"
#include "math/products.h"

namespace imago::layers {

namespace {

void check_size(const Layer& layer, std::string_view what, std::size_t size, std::size_t batch, std::size_t width) {
  if (size != checked_mul(batch, width, "a batch")) {
    throw ShapeError(fmt::format("{}: {} has {} values, not {} rows of {}", describe(layer), what, size, batch, width));
  }
}

constexpr std::size_t kGrain = 16384;  // values worth a thread: some 10 µs
constexpr std::size_t kChunk = 512;    // values at a time, on the stack: they stay in the first-level cache

void check_sizes(std::size_t a, std::size_t b) {
  if (a != b) throw ShapeError(fmt::format("an activation of {} values into {}", a, b));
}

/// grad_z = grad_y · derivative(z).
template <class Derivative>
void multiply(std::span<const float> z, std::span<const float> grad_y, std::span<float> grad_z, Derivative derivative) {
  parallel_for(z.size(), kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) grad_z[i] = grad_y[i] * derivative(z[i]);
  });
}

/// grad_z = grad_y · derivative(z, f(argument(z))), with f by the kernels.
template <class Argument, class Derivative>
void multiply_through(kernels::Activation f, std::span<const float> z, std::span<const float> grad_y,
                      std::span<float> grad_z, Argument argument, Derivative derivative) {
  parallel_for(z.size(), kGrain, [&](std::size_t begin, std::size_t end) {
    std::array<float, kChunk> values;
    for (std::size_t at = begin; at < end; at += kChunk) {
      const std::size_t count = std::min(kChunk, end - at);
      for (std::size_t i = 0; i < count; ++i) values[i] = argument(z[at + i]);
      const std::span<float> chunk(values.data(), count);
      kernels::activate(f, chunk, chunk);
      for (std::size_t i = 0; i < count; ++i) grad_z[at + i] = grad_y[at + i] * derivative(z[at + i], values[i]);
    }
  });
}

constexpr auto kIdentity = [](float z) { return z; };

/// Beyond ±limit the result is constant in float32; without the bound, ∞ · 0 would make it NaN.
float bounded(float z, float limit) { return z > limit ? limit : z < -limit ? -limit : z; }

void gelu_backward(std::span<const float> z, std::span<const float> grad_y, std::span<float> grad_z) {
  constexpr float k = 0.7978845608f;  // sqrt(2 / pi)
  constexpr float a = 0.044715f;
  constexpr float kLimit = 16;  // tanh u is ±1 from |z| = 6 on
  multiply_through(
      kernels::Activation::tanh, z, grad_y, grad_z,
      [](float v) {
        const float x = bounded(v, kLimit);
        return k * (x + a * x * x * x);
      },
      [](float v, float t) {
        const float x = bounded(v, kLimit);
        return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * k * (1 + 3 * a * x * x);
      });
}

template <class T>
double reciprocal_rms(const T* x, std::size_t width, double eps) noexcept {
  double squares = 0;
  for (std::size_t i = 0; i < width; ++i) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return 1 / std::sqrt(squares / static_cast<double>(width) + eps);
}

template <class T>
void add_bias(std::span<const T> bias, std::size_t batch, std::span<T> y) {
  const std::size_t rows = bias.size();
  parallel_rows(batch, rows, [&](std::size_t row) {
    for (std::size_t c = 0; c < rows; ++c) y[row * rows + c] += bias[c];
  });
}

}  // namespace

void linear_forward(const Layer& layer, const Linear& part, std::span<const float> x, std::size_t batch,
                    std::span<float> y, const Run& run) {
  const std::size_t first = part.matrix.first, rows = part.matrix.rows, cols = part.matrix.cols;
  check_size(layer, "the input", x.size(), batch, cols);
  check_size(layer, "the result", y.size(), batch, rows);
  if (run.observer != nullptr && rows * cols == layer.weights->count()) run.observer->see(layer, x, batch);
  const std::span<const float> bias =
      part.bias_first == kNoBias ? std::span<const float>() : weights_of(layer, part.bias_first, rows);
  const Scheme scheme = layer.config.scheme();
  if (!run.for_backward) {
    const kernels::Arithmetic arithmetic = run.fast ? kernels::Arithmetic::fast : kernels::Arithmetic::exact;
    host_matrix(*layer.weights, scheme, part.matrix, arithmetic)->multiply(x, batch, y, {.bias = bias});
    return;
  }
  const std::span<const float> matrix = decoded_weights(*layer.weights, scheme).subspan(first, rows * cols);
  math::gemm({.m = batch, .n = rows, .k = cols, .b = math::Transpose::yes}, x, matrix, y);
  if (!bias.empty()) add_bias(bias, batch, y);
}

void linear_forward(const Layer& layer, const Linear& part, std::span<const double> x, std::size_t batch,
                    std::span<double> y, const Run&) {
  const std::size_t rows = part.matrix.rows, cols = part.matrix.cols;
  check_size(layer, "the input", x.size(), batch, cols);
  check_size(layer, "the result", y.size(), batch, rows);
  math::gemm({.m = batch, .n = rows, .k = cols, .b = math::Transpose::yes}, x,
             weights_of<double>(layer, part.matrix.first, rows * cols), y);
  if (part.bias_first != kNoBias) add_bias(weights_of<double>(layer, part.bias_first, rows), batch, y);
}

void linear_backward(const Layer& layer, const Linear& part, std::span<const float> x, std::size_t batch,
                     std::span<const float> grad_y, std::span<float> gradient, std::span<float> grad_x,
                     bool add_input) {
  const std::size_t first = part.matrix.first, rows = part.matrix.rows, cols = part.matrix.cols;
  check_size(layer, "the input", x.size(), batch, cols);
  check_size(layer, "the gradient of the result", grad_y.size(), batch, rows);
  check_size(layer, "the gradient of the weights", gradient.size(), 1, layer.weights->count());
  math::gemm({.m = rows, .n = cols, .k = batch, .a = math::Transpose::yes}, grad_y, x,
             gradient.subspan(first, rows * cols), math::Write::add);
  if (part.bias_first != kNoBias) {
    add_column_sums(batch, gradient.subspan(part.bias_first, rows),
                    [&](std::size_t row, std::size_t c) { return grad_y[row * rows + c]; });
  }
  if (grad_x.empty()) return;
  check_size(layer, "the gradient of the input", grad_x.size(), batch, cols);
  const std::span<const float> matrix =
      decoded_weights(*layer.weights, layer.config.scheme()).subspan(first, rows * cols);
  math::gemm({.m = batch, .n = cols, .k = rows}, grad_y, matrix, grad_x,
             add_input ? math::Write::add : math::Write::replace);
}

template <>
std::span<const float> weights_of(const Layer& layer, std::size_t first, std::size_t count) {
  return decoded_slice(*layer.weights, layer.config.scheme(), first, count);
}

template <>
std::span<const double> weights_of(const Layer& layer, std::size_t first, std::size_t count) {
  // The store keeps the version that this is a view of.
  return layer.weights->morph(layer.config.scheme())->codes<double>().subspan(first, count);
}

std::size_t rows_of(const Layer& layer, const Shape& x, std::size_t width) {
  if (width == 0 || x.elements() % width != 0) {
    throw ShapeError(fmt::format("{}: an input of shape {} does not divide into rows of {} values", describe(layer),
                                 x.to_string(), width));
  }
  return x.elements() / width;
}

// ---- activation functions

kernels::Activation kernel_function(Activation activation) noexcept {
  switch (activation) {
    case Activation::linear: return kernels::Activation::linear;
    case Activation::relu: return kernels::Activation::relu;
    case Activation::silu: return kernels::Activation::silu;
    case Activation::gelu: return kernels::Activation::gelu;
    case Activation::tanh: return kernels::Activation::tanh;
    case Activation::sigmoid: return kernels::Activation::sigmoid;
    case Activation::leaky_relu: return kernels::Activation::leaky_relu;
    case Activation::relu2: return kernels::Activation::relu2;
  }
  return kernels::Activation::linear;
}

void apply_activation(Activation activation, std::span<const float> z, std::span<float> y) {
  check_sizes(z.size(), y.size());
  if (kernel_function(activation) == kernels::Activation::linear && z.data() == y.data()) return;
  kernels::activate(kernel_function(activation), z, y);
}

void apply_activation(Activation activation, std::span<const double> z, std::span<double> y) {
  check_sizes(z.size(), y.size());
  kernels::activate(kernel_function(activation), z, y);
}

void activation_backward(Activation activation, std::span<const float> z, std::span<const float> grad_y,
                         std::span<float> grad_z) {
  check_sizes(z.size(), grad_y.size());
  check_sizes(z.size(), grad_z.size());
  constexpr float kLimit = 120;  // exp(-120) is 0 in float32
  switch (kernel_function(activation)) {
    case kernels::Activation::linear:
      if (grad_z.data() != grad_y.data()) std::ranges::copy(grad_y, grad_z.begin());
      return;
    case kernels::Activation::relu: return multiply(z, grad_y, grad_z, [](float v) { return v <= 0 ? 0.0f : 1.0f; });
    case kernels::Activation::leaky_relu:
      return multiply(z, grad_y, grad_z, [](float v) { return v <= 0 ? 0.01f : 1.0f; });
    case kernels::Activation::relu2: return multiply(z, grad_y, grad_z, [](float v) { return v <= 0 ? 0.0f : 2 * v; });
    case kernels::Activation::tanh:
      return multiply_through(kernels::Activation::tanh, z, grad_y, grad_z, kIdentity,
                              [](float, float t) { return 1 - t * t; });
    case kernels::Activation::sigmoid:
      return multiply_through(kernels::Activation::sigmoid, z, grad_y, grad_z, kIdentity,
                              [](float, float s) { return s * (1 - s); });
    case kernels::Activation::silu:
      return multiply_through(kernels::Activation::sigmoid, z, grad_y, grad_z, kIdentity,
                              [](float v, float s) { return s * (1 + bounded(v, kLimit) * (1 - s)); });
    case kernels::Activation::gelu: return gelu_backward(z, grad_y, grad_z);
    case kernels::Activation::gelu_erf:
    case kernels::Activation::clamped_swish: break;  // no layer has them
  }
}

std::span<const float> grad_pre_activation(const Layer& layer, const Tensor<float>& grad_output, LayerState& state) {
  if (layer.config.activation == Activation::linear) return grad_output.values();
  if (state.scratch.empty()) state.scratch.resize(1);
  state.scratch[0].resize(state.post.shape());
  activation_backward(layer.config.activation, state.saved[0].values(), grad_output.values(),
                      state.scratch[0].values());
  return state.scratch[0].values();
}

// ---- norms inside layers

template <class T>
void norm_row(const T* x, std::span<const float> weight, double eps, T* y) noexcept {
  const T factor = static_cast<T>(reciprocal_rms(x, weight.size(), eps));
  for (std::size_t i = 0; i < weight.size(); ++i) y[i] = x[i] * factor * static_cast<T>(weight[i]);
}

template void norm_row(const float*, std::span<const float>, double, float*) noexcept;
template void norm_row(const double*, std::span<const float>, double, double*) noexcept;

void norm_row_backward(const float* x, std::span<const float> weight, double eps, const float* grad_y,
                       float* grad_x) noexcept {
  const std::size_t width = weight.size();
  const double factor = reciprocal_rms(x, width, eps);
  double along = 0;  // the part of the gradient that lies along x: the norm takes it away
  for (std::size_t i = 0; i < width; ++i)
    along += static_cast<double>(grad_y[i] * weight[i]) * static_cast<double>(x[i]);
  const float straight = static_cast<float>(factor);
  const float inward = static_cast<float>(along * factor * factor * factor / static_cast<double>(width));
  for (std::size_t i = 0; i < width; ++i) grad_x[i] = grad_y[i] * weight[i] * straight - x[i] * inward;
}

template <class T>
void norm_rows(std::span<const T> x, std::span<const float> weight, double eps, std::span<T> y) {
  const std::size_t width = weight.size();
  parallel_rows(x.size() / width, width,
                [&](std::size_t row) { norm_row(&x[row * width], weight, eps, &y[row * width]); });
}

template void norm_rows(std::span<const float>, std::span<const float>, double, std::span<float>);
template void norm_rows(std::span<const double>, std::span<const float>, double, std::span<double>);

void norm_rows_backward(std::span<const float> x, std::span<const float> weight, double eps,
                        std::span<const float> grad_y, std::span<float> grad_x) {
  const std::size_t width = weight.size();
  parallel_rows(x.size() / width, width, [&](std::size_t row) {
    norm_row_backward(&x[row * width], weight, eps, &grad_y[row * width], &grad_x[row * width]);
  });
}

// ---- Dense: post = f(x · Wᵀ). saved[0]: z = x · Wᵀ, kept for backward unless f is linear.

Linear dense_matrix(const LayerConfig& config) {
  return {.matrix = {.first = 0,
                     .rows = required(config, config.output_height, "output_height"),
                     .cols = required(config, config.input_height, "input_height")}};
}

namespace {

WeightShape dense_shape(const LayerConfig& config) {
  const MatrixSlice matrix = dense_matrix(config).matrix;
  return {.rows = matrix.rows, .cols = matrix.cols};
}

template <class T>
void dense_forward(Layer& layer, const Tensor<T>& x, const Tensor<T>*, LayerState& state, Run& run) {
  const Linear part = dense_matrix(layer.config);
  const std::size_t batch = rows_of(layer, x, part.matrix.cols);
  Tensor<T>& post = state.values<T>().post;
  resize_rows(post, x, part.matrix.cols, part.matrix.rows);
  const std::span<T> z = pre_activation<T>(layer, state, run);
  linear_forward(layer, part, x.values(), batch, z, run);
  apply_activation(layer.config.activation, z, post.values());
}

void dense_backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
                    LayerState& state, LayerGradient& gradient, Run&) {
  const Linear part = dense_matrix(layer.config);
  const std::span<const float> grad_z = grad_pre_activation(layer, grad_output, state);
  std::span<float> grad_x;
  if (state.needs_grad_input) {
    state.grad_input.resize(x.shape());
    grad_x = state.grad_input.values();
  }
  linear_backward(layer, part, x.values(), rows_of(layer, x, part.matrix.cols), grad_z, gradient.weights, grad_x);
}

}  // namespace

const LayerFunctions kDense{LayerType::dense,     dense_shape,           initialize_matrix,
                            dense_forward<float>, dense_forward<double>, dense_backward};

}  // namespace imago::layers
