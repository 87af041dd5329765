// Dense and SwiGLU. saved, as on the host: z unless f is linear; gate, up, their product, its norm.

#include "kernels/cuda/ops.h"
#include "layers/cuda/kernels.h"
#include "layers/cuda/run.h"
#include "layers/settings.h"

namespace imago::layers::cuda {

namespace {

// ---- Dense

void dense_forward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, DeviceState& state, LayerState&,
                   DeviceRun& run) {
  const Linear part = dense_matrix(layer.config);
  const std::size_t rows = part.matrix.rows;
  const std::size_t batch = rows_of(layer, x.shape(), part.matrix.cols);
  const kernels::Activation function = kernel_function(layer.config.activation);
  state.post.resize(*run.device, rows_shape(x.shape(), part.matrix.cols, rows));
  float* const z = pre_activation(layer, state, run);
  if (z == state.post.data()) return linear_forward(layer, part, x.data(), batch, z, run, function);
  linear_forward(layer, part, x.data(), batch, z, run);
  kernels::cuda::activate(function, z, nullptr, state.post.data(), batch, rows, {}, run.stream);
}

void dense_backward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, const DeviceTensor& grad_output,
                    DeviceState& state, DeviceRun& run) {
  const Linear part = dense_matrix(layer.config);
  const float* const grad_z = grad_pre_activation(layer, grad_output, state, 0, run);
  if (state.needs_grad_input) state.grad_input.resize(*run.device, x.shape());
  linear_backward(layer, part, x.data(), rows_of(layer, x.shape(), part.matrix.cols), grad_z,
                  state.needs_grad_input ? state.grad_input.data() : nullptr, run);
}

// ---- SwiGLU

enum Saved : std::size_t { kGate, kUp, kProduct, kNormed, kSavedCount };
enum Scratch : std::size_t { kGradGate, kGradUp, kGradProduct, kNormWeight, kScratchCount };

/// The weight of the inner norm. It is a setting and small, so it is uploaded at each call.
const float* inner_norm(const Layer& layer, DeviceState& state, DeviceRun& run) {
  const std::vector<float>& weight = layer.config.inner_norm;
  state.scratch[kNormWeight].resize(*run.device, Shape{weight.size()});
  run.stream.copy_in(std::as_bytes(std::span(weight)), state.scratch[kNormWeight].data());
  return state.scratch[kNormWeight].data();
}

void swiglu_forward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, DeviceState& state, LayerState&,
                    DeviceRun& run) {
  const SwiGluParts parts = swiglu_parts(layer.config);
  const std::size_t rows = rows_of(layer, x.shape(), parts.width);
  state.saved.resize(kSavedCount);
  state.scratch.resize(kScratchCount);
  state.post.resize(*run.device, rows_shape(x.shape(), parts.width, parts.width));
  if (rows == 0) return;

  for (const Saved part : {kGate, kUp, kProduct}) state.saved[part].resize(*run.device, Shape{rows, parts.inner});
  linear_forward(layer, parts.gate, x.data(), rows, state.saved[kGate].data(), run);
  linear_forward(layer, parts.up, x.data(), rows, state.saved[kUp].data(), run);
  kernels::cuda::activate(parts.function, state.saved[kGate].data(), state.saved[kUp].data(),
                          state.saved[kProduct].data(), rows, parts.inner, {}, run.stream);
  const float* product = state.saved[kProduct].data();
  if (parts.normed) {
    state.saved[kNormed].resize(*run.device, Shape{rows, parts.inner});
    kernels::cuda::norm({.x = state.saved[kProduct].data(),
                         .weight = inner_norm(layer, state, run),
                         .y = state.saved[kNormed].data(),
                         .rows = rows,
                         .cols = parts.inner,
                         .eps = static_cast<float>(effective_eps(layer.config.rms_norm_eps))},
                        run.stream);
    product = state.saved[kNormed].data();
  }
  linear_forward(layer, parts.down, product, rows, state.post.data(), run);
}

void swiglu_backward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, const DeviceTensor& grad_output,
                     DeviceState& state, DeviceRun& run) {
  const SwiGluParts parts = swiglu_parts(layer.config);
  const std::size_t rows = rows_of(layer, x.shape(), parts.width);
  state.grad_input.resize(*run.device, x.shape());
  if (rows == 0) return;

  for (const Scratch part : {kGradGate, kGradUp, kGradProduct}) {
    state.scratch[part].resize(*run.device, Shape{rows, parts.inner});
  }
  float* const grad_product = state.scratch[kGradProduct].data();
  linear_backward(layer, parts.down, state.saved[parts.normed ? kNormed : kProduct].data(), rows, grad_output.data(),
                  grad_product, run);
  if (parts.normed) {
    norm_backward({.x = state.saved[kProduct].data(),
                   .weight = state.scratch[kNormWeight].data(),
                   .grad_y = grad_product,
                   .grad_x = grad_product,
                   .rows = rows,
                   .cols = parts.inner,
                   .eps = effective_eps(layer.config.rms_norm_eps),
                   .layer_norm = false},
                  run.stream);
  }
  gate_backward({.gate = state.saved[kGate].data(),
                 .up = state.saved[kUp].data(),
                 .grad = grad_product,
                 .grad_gate = state.scratch[kGradGate].data(),
                 .grad_up = state.scratch[kGradUp].data(),
                 .count = rows * parts.inner,
                 .relu2 = parts.function == kernels::Activation::relu2},
                run.stream);
  linear_backward(layer, parts.gate, x.data(), rows, state.scratch[kGradGate].data(), state.grad_input.data(), run);
  linear_backward(layer, parts.up, x.data(), rows, state.scratch[kGradUp].data(), state.grad_input.data(), run, true);
}

}  // namespace

const DeviceFunctions kDense{dense_forward, dense_backward};
const DeviceFunctions kSwiGlu{swiglu_forward, swiglu_backward};

}  // namespace imago::layers::cuda
