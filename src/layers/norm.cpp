// RMSNorm and LayerNorm, row by row. Nothing is saved for backward, which reads x anyway and computes mean and
// deviation of a row again.

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "kernels/ops.h"
#include "layers/settings.h"

namespace imago::layers {

std::size_t norm_width(const LayerConfig& config) {
  return required(config, config.output_height > 0 ? config.output_height : config.input_height, "input_height");
}

double effective_eps(double rms_norm_eps) noexcept { return rms_norm_eps > 0 ? rms_norm_eps : 1e-6; }

double norm_eps(const LayerConfig& config) {
  return config.type == LayerType::layer_norm ? 1e-5 : effective_eps(config.rms_norm_eps);
}

namespace {

/// The normalized row is xh = (x - mean) · inverse.
struct RowFigures {
  float mean, inverse;
};

/// Σ_rows dy · xh into `grad_gamma`.
void add_gamma(std::span<const float> x, std::span<const float> grad_y, std::span<const float> figures,
               std::size_t width, std::span<float> grad_gamma) {
  add_column_sums(x.size() / width, grad_gamma, [&](std::size_t row, std::size_t c) {
    const std::size_t i = row * width + c;
    return grad_y[i] * ((x[i] - figures[2 * row]) * figures[2 * row + 1]);
  });
}

/// Calls row(x, dy, dx), which returns the figures, for all rows; the figures go to scratch[0] as pairs.
template <class Row>
void for_each_row(const Tensor<float>& x, const Tensor<float>& grad_y, std::size_t width, LayerState& state,
                  Row&& row) {
  const std::size_t rows = x.size() / width;
  state.grad_input.resize(x.shape());
  state.scratch.resize(1);
  if (state.scratch[0].size() != 2 * rows) state.scratch[0].resize({rows, 2});
  const std::span<float> figures = state.scratch[0].values();
  parallel_rows(rows, width, [&](std::size_t r) {
    const RowFigures found = row(x.values().data() + r * width, grad_y.values().data() + r * width,
                                 state.grad_input.values().data() + r * width);
    figures[2 * r] = found.mean;
    figures[2 * r + 1] = found.inverse;
  });
}

WeightShape weight_shape_of(const LayerConfig& config) {
  const std::size_t width = norm_width(config);
  const std::size_t count = config.type == LayerType::layer_norm ? 2 * width : width;  // gamma, beta
  return {.rows = 1, .cols = count, .vectors = count};
}

void initialize(const LayerConfig& config, WeightStore& weights, std::uint64_t) {
  initialize_constant(weights, 0, norm_width(config), 1);
}

template <class T>
void forward(Layer& layer, const Tensor<T>& x, const Tensor<T>*, LayerState& state, Run&) {
  const std::size_t width = norm_width(layer.config);
  rows_of(layer, x, width);
  Tensor<T>& post = state.values<T>().post;
  post.resize(x.shape());
  const T eps = static_cast<T>(norm_eps(layer.config));
  if (layer.config.type == LayerType::rms_norm) {
    return kernels::rms_norm(x.values(), weights_of<T>(layer, 0, width), eps, post.values());
  }
  const std::span<const T> weights = weights_of<T>(layer, 0, 2 * width);
  kernels::layer_norm(x.values(), weights.first(width), weights.last(width), eps, post.values());
}

void rms_backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
                  LayerState& state, LayerGradient& gradient, Run&) {
  const std::size_t width = norm_width(layer.config);
  const double eps = norm_eps(layer.config);
  const std::span<const float> gamma = weights_of(layer, 0, width);
  for_each_row(x, grad_output, width, state, [&](const float* xs, const float* dy, float* dx) -> RowFigures {
    const double n = static_cast<double>(width);
    const double squares = lane_sum(width, [&](std::size_t i) { return xs[i] * xs[i]; });
    const double product = lane_sum(width, [&](std::size_t i) { return dy[i] * gamma[i] * xs[i]; });
    const double inverse = 1 / std::sqrt(squares / n + eps);
    const float scale = static_cast<float>(inverse);
    const float towards_x = static_cast<float>(product * inverse * inverse * inverse / n);
    for (std::size_t i = 0; i < width; ++i) dx[i] = dy[i] * gamma[i] * scale - xs[i] * towards_x;
    return {0, scale};
  });
  add_gamma(x.values(), grad_output.values(), state.scratch[0].values(), width, gradient.weights);
}

void layer_norm_backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
                         LayerState& state, LayerGradient& gradient, Run&) {
  const std::size_t width = norm_width(layer.config);
  const double eps = norm_eps(layer.config);
  const std::span<const float> gamma = weights_of(layer, 0, 2 * width).first(width);
  for_each_row(x, grad_output, width, state, [&](const float* xs, const float* dy, float* dx) -> RowFigures {
    const double n = static_cast<double>(width);
    const float mean = static_cast<float>(lane_sum(width, [&](std::size_t i) { return xs[i]; }) / n);
    const double squares = lane_sum(width, [&](std::size_t i) { return (xs[i] - mean) * (xs[i] - mean); });
    const float inverse = static_cast<float>(1 / std::sqrt(squares / n + eps));
    const double products =
        lane_sum(width, [&](std::size_t i) { return dy[i] * gamma[i] * ((xs[i] - mean) * inverse); });
    const float mean_dy = static_cast<float>(lane_sum(width, [&](std::size_t i) { return dy[i] * gamma[i]; }) / n);
    const float mean_product = static_cast<float>(products / n);
    for (std::size_t i = 0; i < width; ++i) {
      dx[i] = (dy[i] * gamma[i] - mean_dy - (xs[i] - mean) * inverse * mean_product) * inverse;
    }
    return {mean, inverse};
  });
  const std::span<const float> grad_y = grad_output.values();
  const std::span<float> weights = gradient.weights;
  add_gamma(x.values(), grad_y, state.scratch[0].values(), width, weights.first(width));
  add_column_sums(x.size() / width, weights.last(width),
                  [&](std::size_t row, std::size_t c) { return grad_y[row * width + c]; });
}

}  // namespace

const LayerFunctions kRmsNorm{LayerType::rms_norm, weight_shape_of, initialize,
                              forward<float>,      forward<double>, rms_backward};
const LayerFunctions kLayerNorm{LayerType::layer_norm, weight_shape_of, initialize,
                                forward<float>,        forward<double>, layer_norm_backward};

}  // namespace imago::layers
