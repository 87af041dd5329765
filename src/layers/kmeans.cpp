// KMeans (spec/layers.md §4.14): soft assignment of each row to K centers, or the mix of centers that it gives.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>

#include "base/checked.h"
#include "base/parallel.h"
#include "imago/error.h"
#include "layers/linear.h"
#include "layers/settings.h"
#include "layers/types.h"

namespace imago::layers {

namespace {

// In LayerState::saved: a[rows][K]; the result before the activation, where that is not `a` itself.
enum Saved : std::size_t { kAssignment, kMixture, kSavedCount };
// In LayerState::scratch: the gradient before the activation, and that of the logits [rows][K].
enum Scratch : std::size_t { kGradPre, kGradLogits, kScratchCount };

struct Dims {
  std::size_t clusters, width;
  double inverse_variance;  // 1 / T²
  bool features;

  std::size_t outputs() const noexcept { return features ? width : clusters; }
};

Dims dims_of(const LayerConfig& config) {
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

WeightShape weight_shape_of(const LayerConfig& config) {
  const Dims dims = dims_of(config);
  return {.rows = dims.clusters, .cols = dims.width};
}

void initialize(const LayerConfig&, WeightStore& weights, std::uint64_t seed) {
  initialize_uniform(weights, seed, 0, weights.count());
}

void ensure(Tensor<float>& tensor, std::size_t count) {
  if (tensor.size() != count) tensor.resize(Shape{count});
}

/// Runs body(row) on the pool; each row costs some clusters · width operations.
template <class Body>
void for_each(std::size_t rows, std::size_t cost, const Body& body) {
  const std::size_t grain = std::max<std::size_t>(1, 16384 / std::max<std::size_t>(cost, 1));
  parallel_for(rows, grain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = begin; row < end; ++row) body(row);
  });
}

double squared_distance(const float* a, const float* b, std::size_t count) noexcept {
  constexpr std::size_t kLanes = 8;  // sums side by side, for vectors
  double lanes[kLanes] = {};
  const auto add = [&](std::size_t i, std::size_t lane) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    lanes[lane] += d * d;
  };
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) add(i + lane, lane);
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane) add(i, lane);
  return std::accumulate(std::begin(lanes), std::end(lanes), 0.0);
}

/// a = softmax(-|x - c|² / (2T²)). The nearest center is the reference: what is far from all centers is still assigned.
void assign(const Dims& dims, const float* x, std::span<const float> centers, float* a) {
  double nearest = std::numeric_limits<double>::infinity();
  for (std::size_t j = 0; j < dims.clusters; ++j) {
    nearest = std::min(nearest, squared_distance(x, &centers[j * dims.width], dims.width));
  }
  double sum = 0;
  for (std::size_t j = 0; j < dims.clusters; ++j) {
    const double further = squared_distance(x, &centers[j * dims.width], dims.width) - nearest;
    const double weight = std::exp(-further * dims.inverse_variance / 2);
    a[j] = static_cast<float>(weight);
    sum += weight;
  }
  for (std::size_t j = 0; j < dims.clusters; ++j) a[j] = static_cast<float>(static_cast<double>(a[j]) / sum);
}

/// y = Σ weights[j] · centers[j].
void mix(const Dims& dims, const float* weights, std::span<const float> centers, float* y) {
  std::fill_n(y, dims.width, 0.0f);
  for (std::size_t j = 0; j < dims.clusters; ++j) {
    for (std::size_t i = 0; i < dims.width; ++i) y[i] += weights[j] * centers[j * dims.width + i];
  }
}

const Tensor<float>& pre_of(const Dims& dims, const LayerState& state) {
  return state.saved[dims.features ? kMixture : kAssignment];
}

void forward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, LayerState& state, Run&) {
  const Dims dims = dims_of(layer.config);
  const std::size_t rows = rows_of(layer, x, dims.width);
  const std::span<const float> centers = weights_of(layer, 0, dims.clusters * dims.width);
  resize_rows(state.post, x, dims.width, dims.outputs());
  state.saved.resize(kSavedCount);
  ensure(state.saved[kAssignment], checked_mul(rows, dims.clusters, "KMeans"));
  if (dims.features) ensure(state.saved[kMixture], x.size());

  for_each(rows, dims.clusters * dims.width, [&](std::size_t row) {
    float* const a = state.saved[kAssignment].values().data() + row * dims.clusters;
    assign(dims, &x[row * dims.width], centers, a);
    if (dims.features) mix(dims, a, centers, state.saved[kMixture].values().data() + row * dims.width);
  });
  apply_activation(layer.config.activation, pre_of(dims, state).values(), state.post.values());
}

/// One row of the gradient of the logits, and of x.
void row_backward(const Dims& dims, std::span<const float> centers, const float* x, const float* a,
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
  const Dims dims = dims_of(layer.config);
  const std::size_t width = dims.width;
  const std::size_t rows = rows_of(layer, x, width);
  const std::span<const float> centers = weights_of(layer, 0, dims.clusters * width);
  state.grad_input.resize(x.shape());
  state.scratch.resize(kScratchCount);
  ensure(state.scratch[kGradPre], grad_output.size());
  ensure(state.scratch[kGradLogits], rows * dims.clusters);
  const std::span<float> grad_pre = state.scratch[kGradPre].values();
  const std::span<float> grad_logits = state.scratch[kGradLogits].values();
  const std::span<const float> assignment = state.saved[kAssignment].values();
  activation_backward(layer.config.activation, pre_of(dims, state).values(), grad_output.values(), grad_pre);

  for_each(rows, dims.clusters * width, [&](std::size_t row) {
    row_backward(dims, centers, x.values().data() + row * width, assignment.data() + row * dims.clusters,
                 grad_pre.data() + row * dims.outputs(), grad_logits.data() + row * dims.clusters,
                 state.grad_input.values().data() + row * width);
  });
  // One cluster per piece of work, its rows in order: the sums do not depend on threads.
  for_each(dims.clusters, rows * width, [&](std::size_t j) {
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

const LayerFunctions kKMeans = {
    .type = LayerType::kmeans,
    .weight_shape = weight_shape_of,
    .initialize = initialize,
    .forward = forward,
    .backward = backward,
};

}  // namespace imago::layers
