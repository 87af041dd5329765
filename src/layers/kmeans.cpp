// KMeans: each row's soft assignment to K centers, a = softmax_j(-|x - c_j|² / (2T²)), or the mixture of centers that
// it gives, Σ a_j · c_j; then the activation.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/checked.h"
#include "base/parallel.h"
#include "imago/error.h"
#include "layers/settings.h"

namespace imago::layers {

KMeansDims kmeans_dims(const LayerConfig& config) {
  const double t = config.kmeans_temperature == 0 ? 1 : config.kmeans_temperature;
  const double inverse = 1 / (t * t);
  if (!std::isfinite(inverse) || inverse == 0) {
    throw UsageError(fmt::format("KMeans: a temperature of {} is not usable", t));
  }
  return {.clusters = required(config, config.num_clusters, "num_clusters"),
          .width = required(config, config.input_height, "input_height"),
          .inverse_variance = inverse,
          .features = config.output_mode == "features"};
}

namespace {

// In LayerState::saved: a[rows][K]; the result before the activation, where that is not `a` itself.
enum Saved : std::size_t { kAssignment, kMixture, kSavedCount };
// In LayerState::scratch: the gradient before the activation, and that of the logits [rows][K].
enum Scratch : std::size_t { kGradPre, kGradLogits, kScratchCount };

WeightShape weight_shape_of(const LayerConfig& config) {
  const KMeansDims dims = kmeans_dims(config);
  return {.rows = dims.clusters, .cols = dims.width, .decoded = true};
}

template <class T>
double squared_distance(const T* a, const T* b, std::size_t count) noexcept {
  return lane_sum(count, [&](std::size_t i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    return d * d;
  });
}

/// a = softmax(-|x - c|² / (2T²)). The nearest center is the reference: what is far from all centers is still assigned.
template <class T>
void assign(const KMeansDims& dims, const T* x, std::span<const T> centers, T* a) {
  double nearest = std::numeric_limits<double>::infinity();
  for (std::size_t j = 0; j < dims.clusters; ++j) {
    nearest = std::min(nearest, squared_distance(x, &centers[j * dims.width], dims.width));
  }
  double sum = 0;
  for (std::size_t j = 0; j < dims.clusters; ++j) {
    const double further = squared_distance(x, &centers[j * dims.width], dims.width) - nearest;
    const double weight = std::exp(-further * dims.inverse_variance / 2);
    a[j] = static_cast<T>(weight);
    sum += weight;
  }
  for (std::size_t j = 0; j < dims.clusters; ++j) a[j] = static_cast<T>(static_cast<double>(a[j]) / sum);
}

/// y = Σ weights[j] · centers[j].
template <class T>
void mix(const KMeansDims& dims, const T* weights, std::span<const T> centers, T* y) {
  std::fill_n(y, dims.width, T{0});
  for (std::size_t j = 0; j < dims.clusters; ++j) {
    for (std::size_t i = 0; i < dims.width; ++i) y[i] += weights[j] * centers[j * dims.width + i];
  }
}

template <class T>
const Tensor<T>& pre_of(const KMeansDims& dims, const LayerValues<T>& values) {
  return values.saved[dims.features ? kMixture : kAssignment];
}

template <class T>
void forward(Layer& layer, const Tensor<T>& x, const Tensor<T>*, LayerState& state, Run&) {
  const KMeansDims dims = kmeans_dims(layer.config);
  const std::size_t rows = rows_of(layer, x, dims.width);
  const std::span<const T> centers = weights_of<T>(layer, 0, dims.clusters * dims.width);
  LayerValues<T>& own = state.values<T>();
  resize_rows(own.post, x, dims.width, dims.outputs());
  own.saved.resize(kSavedCount);
  resize_to(own.saved[kAssignment], {checked_mul(rows, dims.clusters, "KMeans")});
  if (dims.features) resize_to(own.saved[kMixture], {x.size()});

  parallel_rows(rows, dims.clusters * dims.width, [&](std::size_t row) {
    T* const a = own.saved[kAssignment].values().data() + row * dims.clusters;
    assign(dims, &x[row * dims.width], centers, a);
    if (dims.features) mix(dims, a, centers, own.saved[kMixture].values().data() + row * dims.width);
  });
  apply_activation(layer.config.activation, pre_of(dims, own).values(), own.post.values());
}

/// One row of the gradient of the logits, and of x.
void row_backward(const KMeansDims& dims, std::span<const float> centers, const float* x, const float* a,
                  const float* grad_pre, float* grad_logits, float* grad_x) {
  double mean = 0;
  for (std::size_t j = 0; j < dims.clusters; ++j) {
    double grad_a = static_cast<double>(grad_pre[dims.features ? 0 : j]);
    if (dims.features) {
      grad_a = 0;
      for (std::size_t i = 0; i < dims.width; ++i) {
        grad_a += static_cast<double>(grad_pre[i]) * static_cast<double>(centers[j * dims.width + i]);
      }
    }
    grad_logits[j] = static_cast<float>(grad_a);
    mean += static_cast<double>(a[j]) * grad_a;
  }
  std::fill_n(grad_x, dims.width, 0.0f);
  for (std::size_t j = 0; j < dims.clusters; ++j) {
    const double gradient = static_cast<double>(a[j]) * (static_cast<double>(grad_logits[j]) - mean);
    grad_logits[j] = static_cast<float>(gradient);
    const float pull = static_cast<float>(gradient * dims.inverse_variance);
    const float* const center = &centers[j * dims.width];
    for (std::size_t i = 0; i < dims.width; ++i) grad_x[i] -= pull * (x[i] - center[i]);
  }
}

void backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
              LayerState& state, LayerGradient& gradient, Run&) {
  const KMeansDims dims = kmeans_dims(layer.config);
  const std::size_t width = dims.width;
  const std::size_t rows = rows_of(layer, x, width);
  const std::span<const float> centers = weights_of(layer, 0, dims.clusters * width);
  state.grad_input.resize(x.shape());
  state.scratch.resize(kScratchCount);
  resize_to(state.scratch[kGradPre], {grad_output.size()});
  resize_to(state.scratch[kGradLogits], {rows * dims.clusters});
  const std::span<float> grad_pre = state.scratch[kGradPre].values();
  const std::span<float> grad_logits = state.scratch[kGradLogits].values();
  const std::span<const float> assignment = state.saved[kAssignment].values();
  activation_backward(layer.config.activation, pre_of<float>(dims, state).values(), grad_output.values(), grad_pre);

  parallel_rows(rows, dims.clusters * width, [&](std::size_t row) {
    row_backward(dims, centers, x.values().data() + row * width, assignment.data() + row * dims.clusters,
                 grad_pre.data() + row * dims.outputs(), grad_logits.data() + row * dims.clusters,
                 state.grad_input.values().data() + row * width);
  });
  // One thread per cluster adds its rows in order: the sums do not depend on the number of threads.
  parallel_rows(dims.clusters, rows * width, [&](std::size_t j) {
    const float* const center = &centers[j * width];
    float* const grad_center = gradient.weights.data() + j * width;
    for (std::size_t row = 0; row < rows; ++row) {
      const float pull =
          static_cast<float>(static_cast<double>(grad_logits[row * dims.clusters + j]) * dims.inverse_variance);
      const float share = dims.features ? assignment[row * dims.clusters + j] : 0;
      for (std::size_t i = 0; i < width; ++i) {
        grad_center[i] += pull * (x[row * width + i] - center[i]);
        if (dims.features) grad_center[i] += share * grad_pre[row * width + i];
      }
    }
  });
}

}  // namespace

const LayerFunctions kKMeans{LayerType::kmeans, weight_shape_of, initialize_matrix,
                             forward<float>,    forward<double>, backward};

}  // namespace imago::layers
