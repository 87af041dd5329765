// Residual, Sequential and Parallel: the same walk as on the host, with results that stay on the device. Parallel's
// saved[0], mode "filter" only: the mixture weights [samples, branches].

#include <fmt/format.h>

#include "imago/error.h"
#include "kernels/cuda/ops.h"
#include "layers/children.h"
#include "layers/cuda/elementwise.h"
#include "layers/cuda/run.h"

namespace imago::layers::cuda {

namespace {

// ---- Residual

bool uses(const DeviceTensor* skip, const DeviceTensor& x) { return skip != nullptr && skip->size() == x.size(); }

void residual_forward(Layer&, const DeviceTensor& x, const DeviceTensor* skip, DeviceState& state, LayerState&,
                      DeviceRun& run) {
  copy_tensor(x, state.post, run);
  if (uses(skip, x)) kernels::cuda::add(skip->data(), 1, state.post.data(), x.size(), run.stream);
}

void residual_backward(Layer&, const DeviceTensor& x, const DeviceTensor* skip, const DeviceTensor& grad_output,
                       DeviceState& state, DeviceRun& run) {
  copy_tensor(grad_output, state.grad_input, run);
  state.grad_input.resize(*run.device, x.shape());
  if (!uses(skip, x)) return;
  copy_tensor(grad_output, state.grad_skip, run);
  state.grad_skip.resize(*run.device, skip->shape());
}

// ---- Sequential

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

/// The last sub-layer before `index` that runs, or kNone.
std::size_t runs_before(Layer& layer, std::size_t index, DeviceRun& run) {
  while (index-- > 0) {
    if (!resolve(layer.sub_layers[index], run.host).config.is_disabled) return index;
  }
  return kNone;
}

void sequential_forward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, DeviceState& state, LayerState& host,
                        DeviceRun& run) {
  state.children.resize(layer.sub_layers.size());
  host.children.resize(layer.sub_layers.size());
  const DeviceTensor* input = &x;
  const DeviceTensor* skip = nullptr;
  for (std::size_t i = 0; i < layer.sub_layers.size(); ++i) {
    Layer& sub_layer = resolve(layer.sub_layers[i], run.host);
    if (sub_layer.config.is_disabled) continue;
    forward_layer(sub_layer, *input, skip, state.children[i], host.children[i], run);
    skip = input;
    input = &state.children[i].post;
  }
  copy_tensor(*input, state.post, run);
}

void sequential_backward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, const DeviceTensor& grad_output,
                         DeviceState& state, DeviceRun& run) {
  const DeviceTensor* grad = &grad_output;
  const DeviceTensor* grad_skip = nullptr;  // belongs to the input of the sub-layer that is next in this loop
  for (std::size_t i = runs_before(layer, layer.sub_layers.size(), run); i != kNone;) {
    Layer& sub_layer = resolve(layer.sub_layers[i], run.host);
    const std::size_t before = runs_before(layer, i, run);
    const DeviceTensor& input = before == kNone ? x : state.children[before].post;
    const std::size_t earlier = before == kNone ? kNone : runs_before(layer, before, run);
    const DeviceTensor* const skip = before == kNone ? nullptr : earlier == kNone ? &x : &state.children[earlier].post;
    DeviceState& child = state.children[i];
    backward_layer(sub_layer, input, skip, *grad, child, run);
    if (grad_skip != nullptr) {
      kernels::cuda::add(grad_skip->data(), 1, child.grad_input.data(), grad_skip->size(), run.stream);
    }
    grad_skip = sub_layer.config.type == LayerType::residual && uses(skip, input) ? &child.grad_skip : nullptr;
    grad = &child.grad_input;
    i = before;
  }
  copy_tensor(*grad, state.grad_input, run);
}

// ---- Parallel

enum class Mode { concat, add, average, filter };

Mode mode_of(const LayerConfig& config) {
  weight_shape(config);  // throws for an unknown mode
  if (config.combine_mode == "add") return Mode::add;
  if (config.combine_mode == "avg") return Mode::average;
  return config.combine_mode == "filter" ? Mode::filter : Mode::concat;
}

std::size_t width_of(const Layer& layer, const DeviceState& child, std::size_t samples) {
  if (child.post.size() % samples != 0) {
    throw ShapeError(fmt::format("{}: a branch gives {}, which is no multiple of {} samples", describe(layer),
                                 child.post.shape().to_string(), samples));
  }
  return child.post.size() / samples;
}

/// Values per sample of the result. Throws ShapeError if the mode needs branches of one size and they differ.
std::size_t result_width(const Layer& layer, Mode mode, const DeviceState& state, std::size_t samples) {
  std::size_t total = 0;
  const std::size_t first = width_of(layer, state.children[0], samples);
  for (std::size_t i = 0; i < layer.branches.size(); ++i) {
    const std::size_t width = width_of(layer, state.children[i], samples);
    total += width;
    if (mode == Mode::concat || width == first) continue;
    throw ShapeError(
        fmt::format("{}: combine_mode '{}' needs branches of one size, but branch 0 gives {} values per sample and "
                    "branch {} gives {}",
                    describe(layer), layer.config.combine_mode, first, i, width));
  }
  return mode == Mode::concat ? total : first;
}

void mixture_weights(Layer& layer, const DeviceTensor& x, DeviceState& state, LayerState& host, std::size_t samples,
                     DeviceRun& run) {
  if (layer.filter_gate == nullptr) throw UsageError(describe(layer) + ": combine_mode 'filter' needs a filter gate");
  const std::size_t branches = layer.branches.size();
  DeviceState& gate = state.children[branches];
  forward_layer(*layer.filter_gate, x, nullptr, gate, host.children[branches], run);
  const std::size_t gate_width = width_of(layer, gate, samples);
  if (gate_width < branches) {
    throw ShapeError(fmt::format("{}: its filter gate gives {} values per sample for {} branches", describe(layer),
                                 gate_width, branches));
  }
  state.saved.resize(1);
  state.saved[0].resize(*run.device, Shape{samples, branches});
  copy_rows({.from = gate.post.data(),
             .from_stride = gate_width,
             .to = state.saved[0].data(),
             .to_stride = branches,
             .rows = samples,
             .width = branches},
            run.stream);
  kernels::cuda::softmax(state.saved[0].data(), samples, branches, 1, 0, run.stream);
}

/// The way of branch `index` into the result; backwards if source and target are exchanged.
RowCopy way_of(const Layer& layer, Mode mode, const DeviceState& state, std::size_t index, std::size_t samples) {
  const std::size_t branches = layer.branches.size();
  return {.from = nullptr,
          .from_stride = 0,
          .to = nullptr,
          .to_stride = 0,
          .rows = samples,
          .width = state.children[index].post.size() / samples,
          .factor = mode == Mode::average ? 1.0f / static_cast<float>(branches) : 1.0f,
          .row_factors = mode == Mode::filter ? state.saved[0].data() + index : nullptr,
          .factor_stride = branches};
}

void parallel_forward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, DeviceState& state, LayerState& host,
                      DeviceRun& run) {
  if (layer.branches.empty()) return copy_tensor(x, state.post, run);
  const Mode mode = mode_of(layer.config);
  const std::size_t samples = samples_of(layer, x.shape());
  const std::size_t children = layer.branches.size() + (layer.filter_gate != nullptr ? 1 : 0);
  state.children.resize(children);
  host.children.resize(children);
  for (std::size_t i = 0; i < layer.branches.size(); ++i) {
    forward_layer(resolve(layer.branches[i], run.host), x, nullptr, state.children[i], host.children[i], run);
  }
  const std::size_t total = result_width(layer, mode, state, samples);
  if (mode == Mode::filter) mixture_weights(layer, x, state, host, samples, run);
  state.post.resize(*run.device, Shape{samples, total});
  std::size_t first = 0;
  for (std::size_t i = 0; i < layer.branches.size(); ++i) {
    RowCopy way = way_of(layer, mode, state, i, samples);
    way.from = state.children[i].post.data();
    way.from_stride = way.width;
    way.to = state.post.data() + first;
    way.to_stride = total;
    way.add = mode != Mode::concat && i > 0;
    copy_rows(way, run.stream);
    if (mode == Mode::concat) first += way.width;
  }
}

/// With e_i = grad_output · branch_i, the gate gets w_i (e_i - Σ w e), and 0 for values that nobody reads.
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
  const Mode mode = mode_of(layer.config);
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
    RowCopy way = way_of(layer, mode, state, i, samples);
    way.from = grad_output.data() + first;
    way.from_stride = total;
    way.to = part.data();
    way.to_stride = way.width;
    copy_rows(way, run.stream);
    backward_layer(resolve(layer.branches[i], run.host), x, nullptr, part, child, run);
    accumulate(child, i == 0);
    if (mode == Mode::concat) first += way.width;
  }
  if (mode != Mode::filter) return;
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
