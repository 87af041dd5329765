// Layers that take x row by row: norms, Embedding, Softmax, KMeans.

#include <algorithm>
#include <cmath>

#include "imago/error.h"
#include "kernels/cuda/ops.h"
#include "layers/cuda/elementwise.h"
#include "layers/cuda/embedding_kernels.h"
#include "layers/cuda/gemm.h"
#include "layers/cuda/norm_kernels.h"
#include "layers/cuda/run.h"
#include "layers/cuda/sequence_kernels.h"
#include "layers/cuda/weights.h"
#include "layers/fixed_norm.h"

namespace imago::layers::cuda {

namespace {

// ---- RMSNorm, LayerNorm. Nothing is saved. scratch[0]: the figures of rows.

bool is_layer_norm(const Layer& layer) { return layer.config.type == LayerType::layer_norm; }

std::size_t norm_width(const Layer& layer) {
  return weight_shape(layer.config).count() / (is_layer_norm(layer) ? 2 : 1);
}

double norm_eps(const Layer& layer) {
  return is_layer_norm(layer) ? static_cast<double>(1e-5f)
                              : static_cast<double>(static_cast<float>(effective_eps(layer.config.rms_norm_eps)));
}

void norm_forward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, DeviceState& state, LayerState&,
                  DeviceRun& run) {
  const std::size_t width = norm_width(layer);
  const std::size_t rows = rows_of(layer, x.shape(), width);
  const float* const weights = weights_of(layer, 0, weight_shape(layer.config).count(), run);
  state.post.resize(*run.device, x.shape());
  if (rows == 0) return;
  kernels::cuda::norm({.x = x.data(),
                       .weight = weights,
                       .bias = is_layer_norm(layer) ? weights + width : nullptr,
                       .y = state.post.data(),
                       .rows = rows,
                       .cols = width,
                       .eps = static_cast<float>(norm_eps(layer)),
                       .layer_norm = is_layer_norm(layer)},
                      run.stream);
}

void norm_layer_backward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, const DeviceTensor& grad_output,
                         DeviceState& state, DeviceRun& run) {
  const std::size_t width = norm_width(layer);
  const std::size_t rows = rows_of(layer, x.shape(), width);
  state.grad_input.resize(*run.device, x.shape());
  state.scratch.resize(1);
  state.scratch[0].resize(*run.device, Shape{rows, 2});
  norm_backward({.x = x.data(),
                 .weight = weights_of(layer, 0, width, run),
                 .grad_y = grad_output.data(),
                 .grad_x = state.grad_input.data(),
                 .figures = state.scratch[0].data(),
                 .rows = rows,
                 .cols = width,
                 .eps = norm_eps(layer),
                 .layer_norm = is_layer_norm(layer)},
                run.stream);
  run.sums.resize(*run.device, Shape{column_sum_scratch(rows, width)});
  add_column_sums({.x = grad_output.data(),
                   .y = x.data(),
                   .figures = state.scratch[0].data(),
                   .sums = gradient_of(layer, 0, run),
                   .rows = rows,
                   .cols = width,
                   .scratch = run.sums.data()},
                  run.stream);
  if (is_layer_norm(layer)) add_rows(grad_output.data(), rows, width, gradient_of(layer, width, run), run);
}

// ---- Embedding. saved[0]: the rows as they are in the table, unless f is linear.

EmbeddingArgs lookup_of(const Layer& layer, const DeviceTensor& x) {
  const WeightShape shape = weight_shape(layer.config);
  return {.ids = x.data(), .count = x.size(), .rows = shape.rows, .cols = shape.cols};
}

/// Out of the packed table: only the rows that are asked for are decoded.
void look_up_packed(const Layer& layer, const EmbeddingArgs& args, float* out, DeviceState& state, DeviceRun& run) {
  static_assert(sizeof(std::int32_t) == sizeof(float));
  state.scratch.resize(1);
  state.scratch[0].resize(*run.device, Shape{args.count});
  std::int32_t* const rows = reinterpret_cast<std::int32_t*>(state.scratch[0].data());
  rows_of_ids(args, rows, run.stream);
  const MatrixSlice whole{.first = 0, .rows = args.rows, .cols = args.cols};
  kernels::cuda::dequantize_rows(device_matrix(*layer.weights, layer.config.scheme(), whole, run), rows, args.count, 1,
                                 out, run.stream);
  clear_unnamed(args, out, run.stream);
}

void embedding_forward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, DeviceState& state, LayerState&,
                       DeviceRun& run) {
  const EmbeddingArgs args = lookup_of(layer, x);
  const kernels::Activation function = kernel_function(layer.config.activation);
  std::vector<std::size_t> extents(x.shape().extents().begin(), x.shape().extents().end());
  extents.push_back(args.cols);
  state.post.resize(*run.device, Shape(std::move(extents)));
  float* rows = state.post.data();
  if (run.for_backward() && function != kernels::Activation::linear) {
    state.saved.resize(1);
    state.saved[0].resize(*run.device, state.post.shape());
    rows = state.saved[0].data();
  }
  if (run.for_backward()) {
    look_up(args, weights_of(layer, 0, args.rows * args.cols, run), rows, run.stream);
  } else if (args.count != 0) {
    look_up_packed(layer, args, rows, state, run);
  }
  if (function == kernels::Activation::linear) return;
  kernels::cuda::activate(function, rows, nullptr, state.post.data(), args.count, args.cols, {}, run.stream);
}

void embedding_backward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, const DeviceTensor& grad_output,
                        DeviceState& state, DeviceRun& run) {
  state.saved.resize(1);
  const float* const grad_rows = grad_of_z(layer, state.saved[0], grad_output, state, 0, run);
  state.grad_input.resize(*run.device, x.shape());
  run.stream.fill_zero(state.grad_input.data(), x.size() * sizeof(float));
  look_up_backward(lookup_of(layer, x), grad_rows, gradient_of(layer, 0, run), run.stream);
}

// ---- Softmax: the variants that are a softmax of x / T in rows. Others run on the host.

bool is_plain_softmax(const LayerConfig& c) {
  if (c.temperature < 0) return false;
  switch (c.softmax_type) {
    case SoftmaxType::gumbel:
    case SoftmaxType::sparse: return false;
    case SoftmaxType::masked: return c.mask.empty();
    case SoftmaxType::entmax: return c.entmax_alpha != 0 && c.entmax_alpha <= 1;
    case SoftmaxType::standard:
    case SoftmaxType::grid:
    case SoftmaxType::hierarchical:
    case SoftmaxType::temperature:
    case SoftmaxType::adaptive:
    case SoftmaxType::mixture: return true;
  }
  return false;
}

std::size_t softmax_cols(const Layer& layer, const Shape& shape) {
  const LayerConfig& c = layer.config;
  weight_shape(c);  // throws for settings that make no layer
  const bool grid = c.softmax_type == SoftmaxType::grid || c.softmax_type == SoftmaxType::hierarchical;
  const bool levels = c.softmax_type == SoftmaxType::hierarchical && !c.hierarchy_levels.empty();
  const int rows = levels ? 1 : grid ? c.softmax_rows : 0;
  const int cols = levels ? c.hierarchy_levels.back() : grid ? c.softmax_cols : 0;
  if (rows <= 0 || cols <= 0) return shape.last();
  rows_of(layer, shape, static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols));
  return static_cast<std::size_t>(cols);
}

float inverse_temperature(const LayerConfig& c) {
  return 1 / static_cast<float>(c.temperature == 0 ? 1 : c.temperature);
}

void softmax_forward(Layer& layer, const DeviceTensor& x, const DeviceTensor* skip, DeviceState& state,
                     LayerState& host, DeviceRun& run) {
  if (!is_plain_softmax(layer.config)) return host_forward(layer, x, skip, state, host, run);
  const std::size_t cols = softmax_cols(layer, x.shape());
  copy_tensor(x, state.post, run);
  if (x.size() == 0) return;
  kernels::cuda::softmax(state.post.data(), x.size() / cols, cols, inverse_temperature(layer.config), 0, run.stream);
}

void softmax_layer_backward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, const DeviceTensor& grad_output,
                            DeviceState& state, DeviceRun& run) {
  const std::size_t cols = softmax_cols(layer, x.shape());
  state.grad_input.resize(*run.device, x.shape());
  if (x.size() == 0) return;
  softmax_backward({.p = state.post.data(),
                    .g = grad_output.data(),
                    .grad_x = state.grad_input.data(),
                    .rows = x.size() / cols,
                    .cols = cols,
                    .g_stride = cols,
                    .grad_stride = cols,
                    .factor = inverse_temperature(layer.config)},
                   run.stream);
}

// ---- KMeans. saved[0]: the assignment, where that is not the result. scratch[0]: distances, as doubles.

void kmeans_forward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, DeviceState& state, LayerState&,
                    DeviceRun& run) {
  const WeightShape shape = weight_shape(layer.config);
  const std::size_t rows = rows_of(layer, x.shape(), shape.cols);
  const bool features = layer.config.output_mode == "features";
  const double t = layer.config.kmeans_temperature == 0 ? 1 : layer.config.kmeans_temperature;
  const float* const centers = weights_of(layer, 0, shape.count(), run);
  state.post.resize(*run.device, rows_shape(x.shape(), shape.cols, features ? shape.cols : shape.rows));
  state.saved.resize(1);
  state.scratch.resize(1);
  state.scratch[0].resize(*run.device, Shape{rows, shape.rows, sizeof(double) / sizeof(float)});
  if (features) state.saved[0].resize(*run.device, Shape{rows, shape.rows});
  float* const a = features ? state.saved[0].data() : state.post.data();
  assign_clusters({.x = x.data(),
                   .centers = centers,
                   .a = a,
                   .distances = reinterpret_cast<double*>(state.scratch[0].data()),
                   .rows = rows,
                   .clusters = shape.rows,
                   .width = shape.cols,
                   .half_inverse_variance = 1 / (t * t) / 2},
                  run.stream);
  if (features && rows != 0) {
    gemm({.a = a, .b = centers, .c = state.post.data(), .m = rows, .n = shape.cols, .k = shape.rows}, run.stream);
  }
  const kernels::Activation function = kernel_function(layer.config.activation);
  if (function == kernels::Activation::linear || rows == 0) return;
  kernels::cuda::activate(function, state.post.data(), nullptr, state.post.data(), rows, state.post.size() / rows, {},
                          run.stream);
}

}  // namespace

void check_softmax_trainable(const Layer& layer) {
  if (is_plain_softmax(layer.config)) return;
  throw UnsupportedError(describe(layer) + " with noise, a mask or sparse results is not trained on a GPU");
}

const DeviceFunctions kNorm{norm_forward, norm_layer_backward};
const DeviceFunctions kEmbedding{embedding_forward, embedding_backward};
const DeviceFunctions kSoftmax{softmax_forward, softmax_layer_backward};
const DeviceFunctions kKMeans{kmeans_forward, nullptr};

}  // namespace imago::layers::cuda
