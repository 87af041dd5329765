// Parallel: branches on the same input, their results combined. saved[0], mode "filter" only: the mixture weights
// [samples, branches].

#include <fmt/format.h>

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

/// Values per sample of a branch or gate.
std::size_t branch_width(const Layer& layer, const Shape& branch, std::size_t samples) {
  if (branch.elements() % samples != 0) {
    throw ShapeError(fmt::format("{}: a branch gives {}, which does not divide into {} samples", describe(layer),
                                 branch.to_string(), samples));
  }
  return branch.elements() / samples;
}

}  // namespace

std::size_t combined_width(const Layer& layer, std::size_t samples,
                           const std::function<const Shape&(std::size_t index)>& shape_of) {
  const CombineMode mode = combine_mode(layer.config);
  std::size_t total = 0;
  const std::size_t first = branch_width(layer, shape_of(0), samples);
  for (std::size_t i = 0; i < layer.branches.size(); ++i) {
    const std::size_t width = branch_width(layer, shape_of(i), samples);
    total += width;
    if (mode == CombineMode::concat || width == first) continue;
    throw ShapeError(
        fmt::format("{}: combine_mode '{}' needs branches of one size, but branch 0 gives {} values per sample and "
                    "branch {} gives {}",
                    describe(layer), layer.config.combine_mode, first, i, width));
  }
  return mode == CombineMode::concat ? total : first;
}

std::size_t gate_width(const Layer& layer, const Shape& gate, std::size_t samples) {
  const std::size_t width = branch_width(layer, gate, samples);
  if (width < layer.branches.size()) {
    throw ShapeError(fmt::format("{}: its filter gate gives {} values per sample for {} branches", describe(layer),
                                 width, layer.branches.size()));
  }
  return width;
}

namespace {

WeightShape checked_settings(const LayerConfig& config) {
  combine_mode(config);
  return {};
}

/// Copies rows of `width` values between matrices whose rows lie `from_stride` and `to_stride` apart.
template <class T>
void copy_rows(std::size_t rows, std::size_t width, const T* from, std::size_t from_stride, T* to,
               std::size_t to_stride) {
  parallel_rows(rows, width, [&](std::size_t r) { std::copy_n(from + r * from_stride, width, to + r * to_stride); });
}

template <class T>
void concatenate(const Layer& layer, LayerState& state, std::size_t samples, std::size_t total) {
  Tensor<T>& post = state.values<T>().post;
  std::size_t first = 0;
  for (std::size_t i = 0; i < layer.branches.size(); ++i) {
    const Tensor<T>& branch = state.children[i].values<T>().post;
    const std::size_t width = branch.size() / samples;
    copy_rows(samples, width, branch.values().data(), width, post.values().data() + first, total);
    first += width;
  }
}

template <class T>
void sum_up(const Layer& layer, LayerState& state) {
  Tensor<T>& post = state.values<T>().post;
  kernels::copy(state.children[0].values<T>().post.values(), post.values());
  for (std::size_t i = 1; i < layer.branches.size(); ++i) {
    kernels::add(state.children[i].values<T>().post.values(), post.values());
  }
  if (combine_mode(layer.config) != CombineMode::average) return;
  kernels::scale(post.values(), T{1} / static_cast<T>(layer.branches.size()));
}

template <class T>
void mix(Layer& layer, const Tensor<T>& x, LayerState& state, std::size_t samples, std::size_t width, Run& run) {
  if (layer.filter_gate == nullptr) throw UsageError(describe(layer) + ": combine_mode 'filter' needs a filter gate");
  const std::size_t branches = layer.branches.size();
  forward_layer(*layer.filter_gate, x, nullptr, state.children[branches], run);
  const Tensor<T>& gate = state.children[branches].values<T>().post;
  LayerValues<T>& own = state.values<T>();
  own.saved.resize(1);
  Tensor<T>& weights = own.saved[0];
  resize_to(weights, {samples, branches});
  copy_rows(samples, branches, gate.values().data(), gate_width(layer, gate.shape(), samples), weights.values().data(),
            branches);
  kernels::softmax(weights.values(), branches);

  parallel_rows(samples, width * branches, [&](std::size_t s) {
    const std::span<T> out = own.post.values().subspan(s * width, width);
    std::ranges::fill(out, T{0});
    for (std::size_t i = 0; i < branches; ++i) {
      const std::span<const T> branch = state.children[i].values<T>().post.values();
      kernels::add_scaled(branch.subspan(s * width, width), weights[s * branches + i], out);
    }
  });
}

template <class T>
void forward(Layer& layer, const Tensor<T>& x, const Tensor<T>*, LayerState& state, Run& run) {
  Tensor<T>& post = state.values<T>().post;
  if (layer.branches.empty()) {
    post = x;
    return;
  }
  const CombineMode mode = combine_mode(layer.config);
  const std::size_t samples = samples_of(layer, x.shape());
  state.children.resize(layer.branches.size() + (layer.filter_gate != nullptr ? 1 : 0));
  for (std::size_t i = 0; i < layer.branches.size(); ++i) {
    forward_layer(resolve(layer.branches[i], run), x, nullptr, state.children[i], run);
  }
  const auto shape_of = [&](std::size_t i) -> const Shape& { return state.children[i].values<T>().post.shape(); };
  const std::size_t width = combined_width(layer, samples, shape_of);
  resize_to(post, {samples, width});
  switch (mode) {
    case CombineMode::concat: concatenate<T>(layer, state, samples, width); break;
    case CombineMode::add:
    case CombineMode::average: sum_up<T>(layer, state); break;
    case CombineMode::filter: mix(layer, x, state, samples, width, run); break;
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

const LayerFunctions kParallel{LayerType::parallel, checked_settings, nullptr,
                               forward<float>,      forward<double>,  backward};

}  // namespace imago::layers
