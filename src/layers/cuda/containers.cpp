// Residual, Sequential and Parallel. saved[0] of Parallel, mode "filter" only: the mixture weights [samples, branches].

#include "layers/children.h"

#include "imago/error.h"
#include "kernels/cuda/ops.h"
#include "layers/cuda/kernels.h"
#include "layers/cuda/run.h"

namespace imago::layers::cuda {

namespace {

// ---- Residual

void residual_forward(Layer&, const DeviceTensor& x, const DeviceTensor* skip, DeviceState& state, LayerState&,
                      DeviceRun& run) {
  copy_tensor(x, state.post, run);
  if (uses_skip(skip, x)) kernels::cuda::add(skip->data(), 1, state.post.data(), x.size(), run.stream);
}

void residual_backward(Layer&, const DeviceTensor& x, const DeviceTensor* skip, const DeviceTensor& grad_output,
                       DeviceState& state, DeviceRun& run) {
  copy_tensor(grad_output, state.grad_input, run);
  state.grad_input.resize(*run.device, x.shape());
  if (!uses_skip(skip, x)) return;
  copy_tensor(grad_output, state.grad_skip, run);
  state.grad_skip.resize(*run.device, skip->shape());
}

// ---- Sequential

void sequential_forward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, DeviceState& state, LayerState& host,
                        DeviceRun& run) {
  host.children.resize(layer.sub_layers.size());
  const auto forward_one = [&](Layer& sub_layer, std::size_t i, const DeviceTensor& input,
                               const DeviceTensor* skip) -> const DeviceTensor& {
    forward_layer(sub_layer, input, skip, state.children[i], host.children[i], run);
    return state.children[i].post;
  };
  copy_tensor(walk_forward(layer, x, state, run.host, forward_one), state.post, run);
}

void sequential_backward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, const DeviceTensor& grad_output,
                         DeviceState& state, DeviceRun& run) {
  const auto backward_one = [&](Layer& sub_layer, std::size_t i, const DeviceTensor& input, const DeviceTensor* skip,
                                const DeviceTensor& grad) {
    backward_layer(sub_layer, input, skip, grad, state.children[i], run);
  };
  const auto add = [&](const DeviceTensor& from, DeviceTensor& to) {
    kernels::cuda::add(from.data(), 1, to.data(), from.size(), run.stream);
  };
  copy_tensor(walk_backward(layer, x, grad_output, state, run.host, backward_one, add), state.grad_input, run);
}

// ---- Parallel

void mixture_weights(Layer& layer, const DeviceTensor& x, DeviceState& state, LayerState& host, std::size_t samples,
                     DeviceRun& run) {
  if (layer.filter_gate == nullptr) throw UsageError(describe(layer) + ": combine_mode 'filter' needs a filter gate");
  const std::size_t branches = layer.branches.size();
  DeviceState& gate = state.children[branches];
  forward_layer(*layer.filter_gate, x, nullptr, gate, host.children[branches], run);
  state.saved.resize(1);
  state.saved[0].resize(*run.device, Shape{samples, branches});
  copy_rows({.from = gate.post.data(),
             .from_stride = gate_width(layer, gate.post.shape(), samples),
             .to = state.saved[0].data(),
             .to_stride = branches,
             .rows = samples,
             .width = branches},
            run.stream);
  kernels::cuda::softmax(state.saved[0].data(), samples, branches, 1, 0, run.stream);
}

/// How the values of branch `index` get into the result and, with source and target exchanged, its gradient back.
RowCopy branch_copy(const Layer& layer, CombineMode mode, const DeviceState& state, std::size_t index,
                    std::size_t samples) {
  const std::size_t branches = layer.branches.size();
  return {.from = nullptr,
          .from_stride = 0,
          .to = nullptr,
          .to_stride = 0,
          .rows = samples,
          .width = state.children[index].post.size() / samples,
          .factor = mode == CombineMode::average ? 1.0f / static_cast<float>(branches) : 1.0f,
          .row_factors = mode == CombineMode::filter ? state.saved[0].data() + index : nullptr,
          .factor_stride = branches};
}

void parallel_forward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, DeviceState& state, LayerState& host,
                      DeviceRun& run) {
  if (layer.branches.empty()) return copy_tensor(x, state.post, run);
  const CombineMode mode = combine_mode(layer.config);
  const std::size_t samples = samples_of(layer, x.shape());
  const std::size_t children = layer.branches.size() + (layer.filter_gate != nullptr ? 1 : 0);
  state.children.resize(children);
  host.children.resize(children);
  for (std::size_t i = 0; i < layer.branches.size(); ++i) {
    forward_layer(resolve(layer.branches[i], run.host), x, nullptr, state.children[i], host.children[i], run);
  }
  const auto shape_of = [&](std::size_t i) -> const Shape& { return state.children[i].post.shape(); };
  const std::size_t total = combined_width(layer, samples, shape_of);
  if (mode == CombineMode::filter) mixture_weights(layer, x, state, host, samples, run);
  state.post.resize(*run.device, Shape{samples, total});
  std::size_t first = 0;
  for (std::size_t i = 0; i < layer.branches.size(); ++i) {
    RowCopy copy = branch_copy(layer, mode, state, i, samples);
    copy.from = state.children[i].post.data();
    copy.from_stride = copy.width;
    copy.to = state.post.data() + first;
    copy.to_stride = total;
    copy.add = mode != CombineMode::concat && i > 0;
    copy_rows(copy, run.stream);
    if (mode == CombineMode::concat) first += copy.width;
  }
}

/// With e_i = grad_output · branch_i, the gate gets w_i (e_i - Σ w e), and 0 for its other values, which are not used.
void gate_gradient(const Layer& layer, const DeviceState& state, const DeviceTensor& grad_output, std::size_t samples,
                   DeviceTensor& part, DeviceTensor& products, DeviceRun& run) {
  const std::size_t branches = layer.branches.size();
  const std::size_t width = grad_output.size() / samples;
  part.resize(*run.device, state.children[branches].post.shape());
  products.resize(*run.device, Shape{samples, branches});
  run.stream.fill_zero(part.data(), part.size() * sizeof(float));
  for (std::size_t i = 0; i < branches; ++i) {
    row_dots(grad_output.data(), state.children[i].post.data(), samples, width, products.data() + i, branches,
             run.stream);
  }
  softmax_backward({.p = state.saved[0].data(),
                    .g = products.data(),
                    .grad_x = part.data(),
                    .rows = samples,
                    .cols = branches,
                    .g_stride = branches,
                    .grad_stride = part.size() / samples,
                    .factor = 1},
                   run.stream);
}

void parallel_backward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, const DeviceTensor& grad_output,
                       DeviceState& state, DeviceRun& run) {
  if (layer.branches.empty()) return copy_tensor(grad_output, state.grad_input, run);
  const CombineMode mode = combine_mode(layer.config);
  const std::size_t samples = samples_of(layer, x.shape());
  const std::size_t total = grad_output.size() / samples;
  state.scratch.resize(2);
  DeviceTensor& part = state.scratch[0];
  std::size_t first = 0;
  const auto accumulate = [&](const DeviceState& child, bool is_first) {
    if (is_first) return copy_tensor(child.grad_input, state.grad_input, run);
    kernels::cuda::add(child.grad_input.data(), 1, state.grad_input.data(), x.size(), run.stream);
  };
  for (std::size_t i = 0; i < layer.branches.size(); ++i) {
    DeviceState& child = state.children[i];
    part.resize(*run.device, child.post.shape());
    RowCopy copy = branch_copy(layer, mode, state, i, samples);
    copy.from = grad_output.data() + first;
    copy.from_stride = total;
    copy.to = part.data();
    copy.to_stride = copy.width;
    copy_rows(copy, run.stream);
    backward_layer(resolve(layer.branches[i], run.host), x, nullptr, part, child, run);
    accumulate(child, i == 0);
    if (mode == CombineMode::concat) first += copy.width;
  }
  if (mode != CombineMode::filter) return;
  DeviceState& gate = state.children[layer.branches.size()];
  gate_gradient(layer, state, grad_output, samples, part, state.scratch[1], run);
  backward_layer(*layer.filter_gate, x, nullptr, part, gate, run);
  accumulate(gate, false);
}

}  // namespace

const DeviceFunctions kResidual{residual_forward, residual_backward};
const DeviceFunctions kSequential{sequential_forward, sequential_backward};
const DeviceFunctions kParallel{parallel_forward, parallel_backward};

}  // namespace imago::layers::cuda
