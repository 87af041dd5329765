// Branches side by side on the same input. saved[0], mode "filter" only: the mixture weights [samples, branches].

#include <algorithm>
#include <string>

#include "base/parallel.h"
#include "imago/error.h"
#include "kernels/ops.h"
#include "layers/children.h"
#include "layers/types.h"

namespace imago::layers {

namespace {

enum class Mode { concat, add, average, filter };

Mode mode_of(const LayerConfig& config) {
  const std::string& mode = config.combine_mode;
  if (mode.empty() || mode == "concat" || mode == "grid_scatter") return Mode::concat;
  if (mode == "add") return Mode::add;
  if (mode == "avg") return Mode::average;
  if (mode == "filter") return Mode::filter;
  throw UsageError("Parallel: unknown combine_mode '" + mode + "'; known: add, avg, concat, filter, grid_scatter");
}

WeightShape checked_settings(const LayerConfig& config) {
  mode_of(config);
  return {};
}

/// Samples per part, so that waking a thread is worth it.
std::size_t grain_of(std::size_t width) { return std::max<std::size_t>(1, 16384 / std::max<std::size_t>(1, width)); }

/// Values per sample of a branch or gate.
std::size_t width_of(const Layer& layer, const LayerState& child, std::size_t samples) {
  if (child.post.size() % samples != 0) {
    throw ShapeError(describe(layer) + ": a branch gives " + child.post.shape().to_string() +
                     ", which is no multiple of " + std::to_string(samples) + " samples");
  }
  return child.post.size() / samples;
}

/// The width that all branches have. Throws ShapeError if they differ.
std::size_t common_width(const Layer& layer, const LayerState& state, std::size_t samples) {
  const std::size_t width = width_of(layer, state.children[0], samples);
  for (std::size_t i = 1; i < layer.branches.size(); ++i) {
    const std::size_t other = width_of(layer, state.children[i], samples);
    if (other == width) continue;
    throw ShapeError(describe(layer) + ": combine_mode '" + layer.config.combine_mode +
                     "' needs branches of one size, but branch 0 gives " + std::to_string(width) +
                     " values per sample and branch " + std::to_string(i) + " gives " + std::to_string(other));
  }
  return width;
}

std::size_t total_width(const Layer& layer, const LayerState& state, std::size_t samples) {
  std::size_t total = 0;
  for (std::size_t i = 0; i < layer.branches.size(); ++i) total += width_of(layer, state.children[i], samples);
  return total;
}

/// Copies rows of `width` values between matrices whose rows lie `from_stride` and `to_stride` apart.
void copy_rows(std::size_t rows, std::size_t width, const float* from, std::size_t from_stride, float* to,
               std::size_t to_stride) {
  parallel_for(rows, grain_of(width), [&](std::size_t begin, std::size_t end) {
    for (std::size_t r = begin; r < end; ++r) std::copy_n(from + r * from_stride, width, to + r * to_stride);
  });
}

void concatenate(const Layer& layer, LayerState& state, std::size_t samples) {
  const std::size_t total = total_width(layer, state, samples);
  resize_matrix(state.post, samples, total);
  std::size_t first = 0;
  for (std::size_t i = 0; i < layer.branches.size(); ++i) {
    const LayerState& child = state.children[i];
    const std::size_t width = child.post.size() / samples;
    copy_rows(samples, width, child.post.values().data(), width, state.post.values().data() + first, total);
    first += width;
  }
}

void sum_up(const Layer& layer, LayerState& state, std::size_t samples, Mode mode) {
  const std::size_t width = common_width(layer, state, samples);
  resize_matrix(state.post, samples, width);
  std::ranges::copy(state.children[0].post.values(), state.post.values().begin());
  for (std::size_t i = 1; i < layer.branches.size(); ++i) {
    kernels::add(state.children[i].post.values(), state.post.values());
  }
  if (mode == Mode::average) kernels::scale(state.post.values(), 1.0f / static_cast<float>(layer.branches.size()));
}

void mix(Layer& layer, const Tensor<float>& x, LayerState& state, std::size_t samples, Run& run) {
  if (layer.filter_gate == nullptr) throw UsageError(describe(layer) + ": combine_mode 'filter' needs a filter gate");
  const std::size_t branches = layer.branches.size();
  LayerState& gate = state.children[branches];
  forward_layer(*layer.filter_gate, x, nullptr, gate, run);
  const std::size_t gate_width = width_of(layer, gate, samples);
  if (gate_width < branches) {
    throw ShapeError(describe(layer) + ": its filter gate gives " + std::to_string(gate_width) +
                     " values per sample for " + std::to_string(branches) + " branches");
  }
  state.saved.resize(1);
  Tensor<float>& weights = state.saved[0];
  resize_matrix(weights, samples, branches);
  copy_rows(samples, branches, gate.post.values().data(), gate_width, weights.values().data(), branches);
  kernels::softmax(weights.values(), branches);

  const std::size_t width = common_width(layer, state, samples);
  resize_matrix(state.post, samples, width);
  parallel_for(samples, grain_of(width * branches), [&](std::size_t begin, std::size_t end) {
    for (std::size_t s = begin; s < end; ++s) {
      const std::span<float> out = state.post.values().subspan(s * width, width);
      std::ranges::fill(out, 0.0f);
      for (std::size_t i = 0; i < branches; ++i) {
        kernels::add_scaled(state.children[i].post.values().subspan(s * width, width), weights[s * branches + i], out);
      }
    }
  });
}

void forward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, LayerState& state, Run& run) {
  if (layer.branches.empty()) {
    state.post = x;
    return;
  }
  const Mode mode = mode_of(layer.config);
  const std::size_t samples = samples_of(layer, x.shape());
  state.children.resize(layer.branches.size() + (layer.filter_gate != nullptr ? 1 : 0));
  for (std::size_t i = 0; i < layer.branches.size(); ++i) {
    forward_layer(resolve(layer.branches[i], run), x, nullptr, state.children[i], run);
  }
  switch (mode) {
    case Mode::concat: concatenate(layer, state, samples); break;
    case Mode::add:
    case Mode::average: sum_up(layer, state, samples, mode); break;
    case Mode::filter: mix(layer, x, state, samples, run); break;
  }
}

/// Writes what branch `index` gets of `grad_output` into `part`, in the shape of the branch's result. `first` is where
/// its values begin in a row of a concatenation.
void branch_gradient(Mode mode, const Layer& layer, const LayerState& state, const Tensor<float>& grad_output,
                     std::size_t samples, std::size_t index, std::size_t first, Tensor<float>& part) {
  const Tensor<float>& post = state.children[index].post;
  const std::size_t width = post.size() / samples;
  const std::size_t total = grad_output.size() / samples;
  part.resize(post.shape());
  copy_rows(samples, width, grad_output.values().data() + first, total, part.values().data(), width);
  if (mode == Mode::average) kernels::scale(part.values(), 1.0f / static_cast<float>(layer.branches.size()));
  if (mode != Mode::filter) return;
  for (std::size_t s = 0; s < samples; ++s) {
    kernels::scale(part.values().subspan(s * width, width), state.saved[0][s * layer.branches.size() + index]);
  }
}

/// The gradient of the gate's result: with e_i = grad_output · branch_i, w_i (e_i - Σ w e) for the first values of each
/// sample and 0 for those that nobody reads.
void gate_gradient(const Layer& layer, const LayerState& state, const Tensor<float>& grad_output, std::size_t samples,
                   Tensor<float>& part) {
  const std::size_t branches = layer.branches.size();
  const std::size_t width = grad_output.size() / samples;
  const Tensor<float>& weights = state.saved[0];
  part.resize(state.children[branches].post.shape());
  std::ranges::fill(part.values(), 0.0f);
  const std::size_t gate_width = part.size() / samples;
  parallel_for(samples, grain_of(width * branches), [&](std::size_t begin, std::size_t end) {
    for (std::size_t s = begin; s < end; ++s) {
      double mean = 0;
      for (std::size_t i = 0; i < branches; ++i) {
        double product = 0;
        for (std::size_t k = s * width; k < (s + 1) * width; ++k) {
          product += static_cast<double>(grad_output[k]) * state.children[i].post[k];
        }
        part[s * gate_width + i] = static_cast<float>(product);
        mean += weights[s * branches + i] * product;
      }
      for (std::size_t i = 0; i < branches; ++i) {
        float& value = part[s * gate_width + i];
        value = static_cast<float>(weights[s * branches + i] * (value - mean));
      }
    }
  });
}

void backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
              LayerState& state, LayerGradient& gradient, Run& run) {
  if (layer.branches.empty()) {
    state.grad_input = grad_output;
    return;
  }
  const Mode mode = mode_of(layer.config);
  const std::size_t samples = samples_of(layer, x.shape());
  state.scratch.resize(1);
  Tensor<float>& part = state.scratch[0];
  std::size_t first = 0;
  for (std::size_t i = 0; i < layer.branches.size(); ++i) {
    LayerState& child = state.children[i];
    branch_gradient(mode, layer, state, grad_output, samples, i, first, part);
    backward_layer(resolve(layer.branches[i], run), x, nullptr, part, child,
                   resolve_gradient(layer.branches[i], gradient.children[i], run), run);
    accumulate(i == 0, child.grad_input, state.grad_input);
    if (mode == Mode::concat) first += child.post.size() / samples;
  }
  if (mode != Mode::filter) return;
  LayerState& gate = state.children[layer.branches.size()];
  gate_gradient(layer, state, grad_output, samples, part);
  backward_layer(*layer.filter_gate, x, nullptr, part, gate, gradient.children[layer.branches.size()], run);
  accumulate(false, gate.grad_input, state.grad_input);
}

}  // namespace

const LayerFunctions kParallel{LayerType::parallel, checked_settings, nullptr, forward, backward};

}  // namespace imago::layers
