// Layers that take x row by row: norms, Embedding, Softmax, KMeans.

#include <algorithm>
#include <cmath>

#include "imago/error.h"
#include "kernels/cuda/ops.h"
#include "layers/cuda/kernels.h"
#include "layers/cuda/run.h"
#include "layers/settings.h"

namespace imago::layers::cuda {

namespace {

// ---- RMSNorm, LayerNorm. Nothing is saved. scratch[0]: the figures of rows.

bool is_layer_norm(const Layer& layer) { return layer.config.type == LayerType::layer_norm; }

void norm_forward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, DeviceState& state, LayerState&,
                  DeviceRun& run) {
  const std::size_t width = norm_width(layer.config);
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
                       .eps = static_cast<float>(norm_eps(layer.config)),
                       .layer_norm = is_layer_norm(layer)},
                      run.stream);
}

void norm_layer_backward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, const DeviceTensor& grad_output,
                         DeviceState& state, DeviceRun& run) {
  const std::size_t width = norm_width(layer.config);
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
                 .eps = norm_eps(layer.config),
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

/// From the packed table: only the rows that are asked for are decoded.
void look_up_packed(const Layer& layer, const EmbeddingArgs& args, float* out, DeviceState& state, DeviceRun& run) {
  static_assert(sizeof(std::int32_t) == sizeof(float));
  state.scratch.resize(1);
  state.scratch[0].resize(*run.device, Shape{args.count});
  std::int32_t* const rows = reinterpret_cast<std::int32_t*>(state.scratch[0].data());
  rows_of_ids(args, rows, run.stream);
  const MatrixSlice whole{.first = 0, .rows = args.rows, .cols = args.cols};
  kernels::cuda::dequantize_rows(matrix_of(layer, whole, run), rows, args.count, 1, out, run.stream);
  clear_unnamed(args, out, run.stream);
}

void embedding_forward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, DeviceState& state, LayerState&,
                       DeviceRun& run) {
  const EmbeddingArgs args = lookup_of(layer, x);
  const kernels::Activation function = kernel_function(layer.config.activation);
  std::vector<std::size_t> extents(x.shape().extents().begin(), x.shape().extents().end());
  extents.push_back(args.cols);
  state.post.resize(*run.device, Shape(std::move(extents)));
  float* const rows = pre_activation(layer, state, run);
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
  const float* const grad_rows = grad_pre_activation(layer, grad_output, state, 0, run);
  state.grad_input.resize(*run.device, x.shape());
  run.stream.fill_zero(state.grad_input.data(), x.size() * sizeof(float));
  look_up_backward(lookup_of(layer, x), grad_rows, gradient_of(layer, 0, run), run.stream);
}

// ---- Softmax: the variants that are a softmax of x / T in rows. Others run on the host.

bool is_plain_softmax(const SoftmaxSettings& settings) {
  return settings.alpha == 1 && !settings.noisy && settings.mask == nullptr && settings.temperature > 0;
}

void softmax_forward(Layer& layer, const DeviceTensor& x, const DeviceTensor* skip, DeviceState& state,
                     LayerState& host, DeviceRun& run) {
  const SoftmaxSettings settings = softmax_settings(layer.config);
  if (!is_plain_softmax(settings)) return host_forward(layer, x, skip, state, host, run);
  const std::size_t cols = softmax_cols(layer, settings, x.shape());
  copy_tensor(x, state.post, run);
  if (x.size() == 0) return;
  kernels::cuda::softmax(state.post.data(), x.size() / cols, cols, static_cast<float>(1 / settings.temperature), 0,
                         run.stream);
}

void softmax_layer_backward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, const DeviceTensor& grad_output,
                            DeviceState& state, DeviceRun& run) {
  const SoftmaxSettings settings = softmax_settings(layer.config);
  const std::size_t cols = softmax_cols(layer, settings, x.shape());
  state.grad_input.resize(*run.device, x.shape());
  if (x.size() == 0) return;
  softmax_backward({.p = state.post.data(),
                    .g = grad_output.data(),
                    .grad_x = state.grad_input.data(),
                    .rows = x.size() / cols,
                    .cols = cols,
                    .g_stride = cols,
                    .grad_stride = cols,
                    .factor = static_cast<float>(1 / settings.temperature)},
                   run.stream);
}

// ---- KMeans. saved[0]: the assignment, where that is not the result. scratch[0]: distances, as doubles.

void kmeans_forward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, DeviceState& state, LayerState&,
                    DeviceRun& run) {
  const KMeansDims dims = kmeans_dims(layer.config);
  const std::size_t rows = rows_of(layer, x.shape(), dims.width);
  const float* const centers = weights_of(layer, 0, dims.clusters * dims.width, run);
  state.post.resize(*run.device, rows_shape(x.shape(), dims.width, dims.outputs()));
  state.saved.resize(1);
  state.scratch.resize(1);
  state.scratch[0].resize(*run.device, Shape{rows, dims.clusters, sizeof(double) / sizeof(float)});
  if (dims.features) state.saved[0].resize(*run.device, Shape{rows, dims.clusters});
  float* const a = dims.features ? state.saved[0].data() : state.post.data();
  assign_clusters({.x = x.data(),
                   .centers = centers,
                   .a = a,
                   .distances = reinterpret_cast<double*>(state.scratch[0].data()),
                   .rows = rows,
                   .clusters = dims.clusters,
                   .width = dims.width,
                   .half_inverse_variance = dims.inverse_variance / 2},
                  run.stream);
  if (dims.features && rows != 0) {
    gemm({.a = a, .b = centers, .c = state.post.data(), .m = rows, .n = dims.width, .k = dims.clusters}, run.stream);
  }
  const kernels::Activation function = kernel_function(layer.config.activation);
  if (function == kernels::Activation::linear || rows == 0) return;
  kernels::cuda::activate(function, state.post.data(), nullptr, state.post.data(), rows, state.post.size() / rows, {},
                          run.stream);
}

}  // namespace

void check_softmax_trainable(const Layer& layer) {
  if (is_plain_softmax(softmax_settings(layer.config))) return;
  throw UnsupportedError(describe(layer) + " with noise, a mask or sparse results is not trained on a GPU");
}

const DeviceFunctions kNorm{norm_forward, norm_layer_backward};
const DeviceFunctions kEmbedding{embedding_forward, embedding_backward};
const DeviceFunctions kSoftmax{softmax_forward, softmax_layer_backward};
const DeviceFunctions kKMeans{kmeans_forward, nullptr};

}  // namespace imago::layers::cuda
