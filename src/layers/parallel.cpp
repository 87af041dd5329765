// Parallel: branches on the same input, their results combined. saved[0], mode "filter" only: the mixture weights
// [samples, branches].

#include <algorithm>
#include <string>

#include "base/parallel.h"
#include "imago/error.h"
#include "kernels/ops.h"
#include "layers/children.h"

namespace imago::layers {

CombineMode combine_mode(const LayerConfig& config) {
  const std::string& mode = config.combine_mode;
  if (mode.empty() || mode == "concat" || mode == "grid_scatter") return CombineMode::concat;
  if (mode == "add") return CombineMode::add;
  if (mode == "avg") return CombineMode::average;
  if (mode == "filter") return CombineMode::filter;
  throw UsageError("Parallel: unknown combine_mode '" + mode + "'; known: add, avg, concat, filter, grid_scatter");
}

std::size_t samples_of(const Layer& layer, const Shape& x) {
  const std::size_t samples = x.rank() < 2 ? 1 : x[0];
  if (samples == 0) throw ShapeError(describe(layer) + ": the batch " + x.to_string() + " has no samples");
  return samples;
}

namespace {

WeightShape checked_settings(const LayerConfig& config) {
  combine_mode(config);
  return {};
}

/// Copies rows of `width` values between matrices whose rows lie `from_stride` and `to_stride` apart.
void copy_rows(std::size_t rows, std::size_t width, const float* from, std::size_t from_stride, float* to,
               std::size_t to_stride) {
  parallel_rows(rows, width, [&](std::size_t r) { std::copy_n(from + r * from_stride, width, to + r * to_stride); });
}

void concatenate(const Layer& layer, LayerState& state, std::size_t samples) {
  const std::size_t total = combined_width(layer, state, samples);
  resize_to(state.post, {samples, total});
  std::size_t first = 0;
  for (std::size_t i = 0; i < layer.branches.size(); ++i) {
    const LayerState& child = state.children[i];
    const std::size_t width = child.post.size() / samples;
    copy_rows(samples, width, child.post.values().data(), width, state.post.values().data() + first, total);
    first += width;
  }
}

void sum_up(const Layer& layer, LayerState& state, std::size_t samples) {
  resize_to(state.post, {samples, combined_width(layer, state, samples)});
  std::ranges::copy(state.children[0].post.values(), state.post.values().begin());
  for (std::size_t i = 1; i < layer.branches.size(); ++i) {
    kernels::add(state.children[i].post.values(), state.post.values());
  }
  if (combine_mode(layer.config) != CombineMode::average) return;
  kernels::scale(state.post.values(), 1.0f / static_cast<float>(layer.branches.size()));
}

void mix(Layer& layer, const Tensor<float>& x, LayerState& state, std::size_t samples, Run& run) {
  if (layer.filter_gate == nullptr) throw UsageError(describe(layer) + ": combine_mode 'filter' needs a filter gate");
  const std::size_t branches = layer.branches.size();
  LayerState& gate = state.children[branches];
  forward_layer(*layer.filter_gate, x, nullptr, gate, run);
  state.saved.resize(1);
  Tensor<float>& weights = state.saved[0];
  resize_to(weights, {samples, branches});
  copy_rows(samples, branches, gate.post.values().data(), gate_width(layer, gate, samples), weights.values().data(),
            branches);
  kernels::softmax(weights.values(), branches);

  const std::size_t width = combined_width(layer, state, samples);
  resize_to(state.post, {samples, width});
  parallel_rows(samples, width * branches, [&](std::size_t s) {
    const std::span<float> out = state.post.values().subspan(s * width, width);
    std::ranges::fill(out, 0.0f);
    for (std::size_t i = 0; i < branches; ++i) {
      kernels::add_scaled(state.children[i].post.values().subspan(s * width, width), weights[s * branches + i], out);
    }
  });
}

void forward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, LayerState& state, Run& run) {
  if (layer.branches.empty()) {
    state.post = x;
    return;
  }
  const CombineMode mode = combine_mode(layer.config);
  const std::size_t samples = samples_of(layer, x.shape());
  state.children.resize(layer.branches.size() + (layer.filter_gate != nullptr ? 1 : 0));
  for (std::size_t i = 0; i < layer.branches.size(); ++i) {
    forward_layer(resolve(layer.branches[i], run), x, nullptr, state.children[i], run);
  }
  switch (mode) {
    case CombineMode::concat: concatenate(layer, state, samples); break;
    case CombineMode::add:
    case CombineMode::average: sum_up(layer, state, samples); break;
    case CombineMode::filter: mix(layer, x, state, samples, run); break;
  }
}

/// Writes what branch `index` gets of `grad_output` into `part`, in the shape of the branch's result. `first` is where
/// its values begin in a row of a concatenation.
void branch_gradient(CombineMode mode, const Layer& layer, const LayerState& state, const Tensor<float>& grad_output,
                     std::size_t samples, std::size_t index, std::size_t first, Tensor<float>& part) {
  const Tensor<float>& post = state.children[index].post;
  const std::size_t width = post.size() / samples;
  const std::size_t total = grad_output.size() / samples;
  part.resize(post.shape());
  copy_rows(samples, width, grad_output.values().data() + first, total, part.values().data(), width);
  if (mode == CombineMode::average) kernels::scale(part.values(), 1.0f / static_cast<float>(layer.branches.size()));
  if (mode != CombineMode::filter) return;
  for (std::size_t s = 0; s < samples; ++s) {
    kernels::scale(part.values().subspan(s * width, width), state.saved[0][s * layer.branches.size() + index]);
  }
}

/// The gradient of the gate's result: with e_i = grad_output · branch_i, w_i (e_i - Σ w e) for the first values of each
/// sample and 0 for the rest, which are not used.
void gate_gradient(const Layer& layer, const LayerState& state, const Tensor<float>& grad_output, std::size_t samples,
                   Tensor<float>& part) {
  const std::size_t branches = layer.branches.size();
  const std::size_t width = grad_output.size() / samples;
  const Tensor<float>& weights = state.saved[0];
  part.resize(state.children[branches].post.shape());
  std::ranges::fill(part.values(), 0.0f);
  const std::size_t part_width = part.size() / samples;
  parallel_rows(samples, width * branches, [&](std::size_t s) {
    double mean = 0;
    for (std::size_t i = 0; i < branches; ++i) {
      double product = 0;
      for (std::size_t k = s * width; k < (s + 1) * width; ++k) {
        product += static_cast<double>(grad_output[k]) * state.children[i].post[k];
      }
      part[s * part_width + i] = static_cast<float>(product);
      mean += weights[s * branches + i] * product;
    }
    for (std::size_t i = 0; i < branches; ++i) {
      float& value = part[s * part_width + i];
      value = static_cast<float>(weights[s * branches + i] * (value - mean));
    }
  });
}

void backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
              LayerState& state, LayerGradient& gradient, Run& run) {
  if (layer.branches.empty()) {
    state.grad_input = grad_output;
    return;
  }
  const CombineMode mode = combine_mode(layer.config);
  const std::size_t samples = samples_of(layer, x.shape());
  state.scratch.resize(1);
  Tensor<float>& part = state.scratch[0];
  std::size_t first = 0;
  const auto accumulate = [&](bool is_first, const Tensor<float>& term) {
    if (is_first) return copy_tensor(term, state.grad_input);
    kernels::add(term.values(), state.grad_input.values());
  };
  for (std::size_t i = 0; i < layer.branches.size(); ++i) {
    LayerState& child = state.children[i];
    branch_gradient(mode, layer, state, grad_output, samples, i, first, part);
    backward_layer(resolve(layer.branches[i], run), x, nullptr, part, child,
                   resolve_gradient(layer.branches[i], gradient.children[i], run), run);
    accumulate(i == 0, child.grad_input);
    if (mode == CombineMode::concat) first += child.post.size() / samples;
  }
  if (mode != CombineMode::filter) return;
  LayerState& gate = state.children[layer.branches.size()];
  gate_gradient(layer, state, grad_output, samples, part);
  backward_layer(*layer.filter_gate, x, nullptr, part, gate, gradient.children[layer.branches.size()], run);
  accumulate(false, gate.grad_input);
}

}  // namespace

const LayerFunctions kParallel{LayerType::parallel, checked_settings, nullptr, forward, backward};

}  // namespace imago::layers
