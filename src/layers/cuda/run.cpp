#include "layers/cuda/run.h"

#include <fmt/format.h>

#include "imago/error.h"
#include "kernels/cuda/ops.h"
#include "layers/cuda/kernels.h"

namespace imago::layers::cuda {

namespace {

constexpr DeviceFunctions kOnHost{host_forward, nullptr};

const DeviceFunctions& functions_of(LayerType type) {
  switch (type) {
    case LayerType::dense: return kDense;
    case LayerType::multi_head_attention: return kAttention;
    case LayerType::swiglu: return kSwiGlu;
    case LayerType::rms_norm:
    case LayerType::layer_norm: return kNorm;
    case LayerType::cnn1:
    case LayerType::cnn2:
    case LayerType::cnn3: return kConvolution;
    case LayerType::conv_transposed_1d:
    case LayerType::conv_transposed_2d:
    case LayerType::conv_transposed_3d: return kTransposedConvolution;
    case LayerType::rnn: return kRnn;
    case LayerType::lstm: return kLstm;
    case LayerType::embedding: return kEmbedding;
    case LayerType::kmeans: return kKMeans;
    case LayerType::softmax: return kSoftmax;
    case LayerType::parallel: return kParallel;
    case LayerType::sequential: return kSequential;
    case LayerType::residual: return kResidual;
    case LayerType::metacognition: return kOnHost;
  }
  return kOnHost;
}

void download(const DeviceTensor& from, Tensor<float>& to, DeviceRun& run) {
  to.resize(from.shape());
  run.stream.copy_out(from.data(), std::as_writable_bytes(to.values()));
}

TrainedLayer& trained(const Layer& layer, DeviceRun& run) { return run.trained->at(&layer); }

}  // namespace

void host_forward(Layer& layer, const DeviceTensor& x, const DeviceTensor* skip, DeviceState& state, LayerState& host,
                  DeviceRun& run) {
  download(x, state.host_x, run);
  if (skip != nullptr) download(*skip, state.host_skip, run);
  run.stream.wait();
  layers::forward_layer(layer, state.host_x, skip == nullptr ? nullptr : &state.host_skip, host, run.host);
  state.post.resize(*run.device, host.post.shape());
  run.stream.copy_in(std::as_bytes(host.post.values()), state.post.data());
}

void forward_layer(Layer& layer, const DeviceTensor& x, const DeviceTensor* skip, DeviceState& state, LayerState& host,
                   DeviceRun& run) {
  if (layer.config.is_disabled) return copy_tensor(x, state.post, run);
  check_weights(layer);
  state.ran_as = layer.config.type;
  functions_of(layer.config.type).forward(layer, x, skip, state, host, run);
}

void backward_layer(Layer& layer, const DeviceTensor& x, const DeviceTensor* skip, const DeviceTensor& grad_output,
                    DeviceState& state, DeviceRun& run) {
  if (grad_output.size() != state.post.size()) {
    throw ShapeError(fmt::format("{}: a gradient of shape {} for a result of shape {}", describe(layer),
                                 grad_output.shape().to_string(), state.post.shape().to_string()));
  }
  if (layer.config.is_disabled) return copy_tensor(grad_output, state.grad_input, run);
  functions_of(layer.config.type).backward(layer, x, skip, grad_output, state, run);
}

void check_trainable(const Layer& layer) {
  if (layer.config.is_disabled) return;
  if (functions_of(layer.config.type).backward == nullptr) {
    throw UnsupportedError(fmt::format("{} is not trained on a GPU: train this network on the host", describe(layer)));
  }
  if (layer.config.type == LayerType::softmax) check_softmax_trainable(layer);
  if (layer.weights && layer.config.dtype.is_block()) {
    throw UnsupportedError(
        fmt::format("{} is in {}, and a GPU trains layers of the 21 dtypes: train this network on the host",
                    describe(layer), layer.config.dtype.name()));
  }
  const auto check = [](const Layer& child) {
    if (!child.config.is_remote_link) check_trainable(child);
  };
  for_each_child(layer, check);
}

void copy_tensor(const DeviceTensor& from, DeviceTensor& to, DeviceRun& run) {
  to.resize(*run.device, from.shape());
  if (from.size() != 0) run.stream.copy_within(from.data(), to.data(), from.size() * sizeof(float));
}

Shape rows_shape(const Shape& x, std::size_t width, std::size_t new_width) {
  const std::span<const std::size_t> from = x.extents();
  if (from.empty() || from.back() != width) return Shape{x.elements() / width, new_width};
  std::vector<std::size_t> extents(from.begin(), from.end());
  extents.back() = new_width;
  return Shape(std::move(extents));
}

const kernels::cuda::GpuMatrix& matrix_of(const Layer& layer, const MatrixSlice& slice, DeviceRun& run) {
  auto matrix = device_matrix(*layer.weights, layer.config.scheme(), slice, run.device);
  const kernels::cuda::GpuMatrix& found = *matrix;
  run.held.push_back(std::move(matrix));
  return found;
}

const float* weights_of(const Layer& layer, std::size_t first, std::size_t count, DeviceRun& run) {
  if (run.for_backward()) return trained(layer, run).active() + first;
  auto weights = device_weights(*layer.weights, layer.config.scheme(), first, count, run.device);
  const float* const values = reinterpret_cast<const float*>(weights->address());
  run.held.push_back(std::move(weights));
  return values;
}

float* gradient_of(const Layer& layer, std::size_t first, DeviceRun& run) {
  return trained(layer, run).gradient.data() + first;
}

void linear_forward(const Layer& layer, const Linear& part, const float* x, std::size_t batch, float* y, DeviceRun& run,
                    kernels::Activation activation) {
  const std::size_t rows = part.matrix.rows, cols = part.matrix.cols;
  if (batch == 0) return;
  const float* const bias = part.bias_first == kNoBias ? nullptr : weights_of(layer, part.bias_first, rows, run);
  if (!run.for_backward()) {
    const kernels::cuda::GpuProduct product{
        .matrix = &matrix_of(layer, part.matrix, run), .y = y, .epilogue = {.bias = bias, .activation = activation}};
    kernels::cuda::multiply({&product, 1}, {.x = x, .count = batch, .cols = cols},
                            run.host.fast ? kernels::Arithmetic::fast : kernels::Arithmetic::exact, run.products,
                            run.stream);
    return;
  }
  gemm({.a = x,
        .b = weights_of(layer, part.matrix.first, rows * cols, run),
        .c = y,
        .m = batch,
        .n = rows,
        .k = cols,
        .b_transposed = true},
       run.stream);
  if (bias != nullptr) add_bias(bias, y, batch, rows, run.stream);
  if (activation != kernels::Activation::linear) {
    kernels::cuda::activate(activation, y, nullptr, y, batch, rows, {}, run.stream);
  }
}

void linear_backward(const Layer& layer, const Linear& part, const float* x, std::size_t batch, const float* grad_y,
                     float* grad_x, DeviceRun& run, bool add_input) {
  const std::size_t rows = part.matrix.rows, cols = part.matrix.cols;
  if (batch == 0) return;
  gemm({.a = grad_y,
        .b = x,
        .c = gradient_of(layer, part.matrix.first, run),
        .m = rows,
        .n = cols,
        .k = batch,
        .a_transposed = true,
        .add = true},
       run.stream);
  if (part.bias_first != kNoBias) add_rows(grad_y, batch, rows, gradient_of(layer, part.bias_first, run), run);
  if (grad_x == nullptr) return;
  gemm({.a = grad_y,
        .b = weights_of(layer, part.matrix.first, rows * cols, run),
        .c = grad_x,
        .m = batch,
        .n = cols,
        .k = rows,
        .add = add_input},
       run.stream);
}

void add_rows(const float* x, std::size_t rows, std::size_t cols, float* sums, DeviceRun& run) {
  run.sums.resize(*run.device, Shape{column_sum_scratch(rows, cols)});
  add_column_sums({.x = x, .sums = sums, .rows = rows, .cols = cols, .scratch = run.sums.data()}, run.stream);
}

float* pre_activation(const Layer& layer, DeviceState& state, DeviceRun& run) {
  if (!run.for_backward() || kernel_function(layer.config.activation) == kernels::Activation::linear) {
    return state.post.data();
  }
  state.saved.resize(1);
  state.saved[0].resize(*run.device, state.post.shape());
  return state.saved[0].data();
}

const float* grad_pre_activation(const Layer& layer, const DeviceTensor& grad_output, DeviceState& state,
                                 std::size_t index, DeviceRun& run) {
  const kernels::Activation function = kernel_function(layer.config.activation);
  if (function == kernels::Activation::linear) return grad_output.data();
  if (state.scratch.size() <= index) state.scratch.resize(index + 1);
  state.scratch[index].resize(*run.device, grad_output.shape());
  activation_backward(function, state.saved[0].data(), grad_output.data(), state.scratch[index].data(),
                      grad_output.size(), run.stream);
  return state.scratch[index].data();
}

}  // namespace imago::layers::cuda
