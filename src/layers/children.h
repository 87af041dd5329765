#pragma once

// What containers share on the CPU and the GPU: how the layers inside them are found, walked and checked. `State` is
// LayerState or its counterpart on a device, `AnyTensor` the tensor in it.

#include <fmt/format.h>

#include <cstddef>

#include "imago/error.h"
#include "layers/settings.h"

namespace imago::layers {

/// The layer that runs in the place of a branch or sub-layer: itself or, for a remote link, the grid layer that it
/// names. A disabled link stays itself, since nothing of it runs. Throws UsageError for a link without a grid and for a
/// target outside it.
Layer& resolve(Layer& child, Run& run);

/// Where the weight gradient of a branch or sub-layer goes: `own` or, for a remote link, that of its target.
LayerGradient& resolve_gradient(const Layer& child, LayerGradient& own, Run& run);

/// to = from, on all threads; allocates nothing if the shapes are equal.
void copy_tensor(const Tensor<float>& from, Tensor<float>& to);

/// True if Residual adds the skip to x: there is one of the same size.
template <class AnyTensor>
bool uses_skip(const AnyTensor* skip, const AnyTensor& x) {
  return skip != nullptr && skip->size() == x.size();
}

// ---- Sequential. Each sub-layer's result stays in its own state, which is also where the next one reads its input, so
// nothing is saved beside the children.

inline constexpr std::size_t kNoLayer = static_cast<std::size_t>(-1);
/// The last sub-layer before `index` that is enabled, or kNoLayer.
std::size_t enabled_before(Layer& layer, std::size_t index, Run& run);

/// Calls forward(sub_layer, index, input, skip) for each enabled sub-layer; `skip` is the input of the one before.
/// Returns the last result.
template <class AnyTensor, class State, class ForwardOne>
const AnyTensor& walk_forward(Layer& layer, const AnyTensor& x, State& state, Run& run, ForwardOne&& forward) {
  state.children.resize(layer.sub_layers.size());
  const AnyTensor* input = &x;
  const AnyTensor* skip = nullptr;
  for (std::size_t i = 0; i < layer.sub_layers.size(); ++i) {
    Layer& sub_layer = resolve(layer.sub_layers[i], run);
    if (sub_layer.config.is_disabled) continue;
    forward(sub_layer, i, *input, skip);
    skip = input;
    input = &state.children[i].post;
  }
  return *input;
}

/// Calls backward(sub_layer, index, input, skip, grad) in the opposite order, and add(from, to) where the gradient of a
/// skip joins that of an input. Returns the gradient of x.
template <class AnyTensor, class State, class BackwardOne, class Add>
const AnyTensor& walk_backward(Layer& layer, const AnyTensor& x, const AnyTensor& grad_output, State& state, Run& run,
                               BackwardOne&& backward, Add&& add) {
  const AnyTensor* grad = &grad_output;
  const AnyTensor* grad_skip = nullptr;  // of the input of the sub-layer that is next in this loop
  for (std::size_t i = enabled_before(layer, layer.sub_layers.size(), run); i != kNoLayer;) {
    Layer& sub_layer = resolve(layer.sub_layers[i], run);
    const std::size_t before = enabled_before(layer, i, run);
    const std::size_t earlier = before == kNoLayer ? kNoLayer : enabled_before(layer, before, run);
    const AnyTensor& input = before == kNoLayer ? x : state.children[before].post;
    const AnyTensor* const skip = before == kNoLayer    ? nullptr
                                  : earlier == kNoLayer ? &x
                                                        : &state.children[earlier].post;
    State& child = state.children[i];
    backward(sub_layer, i, input, skip, *grad);
    if (grad_skip != nullptr) add(*grad_skip, child.grad_input);
    grad_skip = sub_layer.config.type == LayerType::residual && uses_skip(skip, input) ? &child.grad_skip : nullptr;
    grad = &child.grad_input;
    i = before;
  }
  return *grad;
}

// ---- Parallel

/// Samples of a batch: the first extent, 1 below rank 2. Throws ShapeError, naming the layer, for none.
std::size_t samples_of(const Layer& layer, const Shape& x);

/// Values per sample of a branch or gate. Throws ShapeError if they do not divide into samples.
template <class State>
std::size_t branch_width(const Layer& layer, const State& child, std::size_t samples) {
  if (child.post.size() % samples != 0) {
    throw ShapeError(fmt::format("{}: a branch gives {}, which does not divide into {} samples", describe(layer),
                                 child.post.shape().to_string(), samples));
  }
  return child.post.size() / samples;
}

/// Values per sample of the result. Throws ShapeError if the mode needs branches of one size and they differ.
template <class State>
std::size_t combined_width(const Layer& layer, const State& state, std::size_t samples) {
  const CombineMode mode = combine_mode(layer.config);
  std::size_t total = 0;
  const std::size_t first = branch_width(layer, state.children[0], samples);
  for (std::size_t i = 0; i < layer.branches.size(); ++i) {
    const std::size_t width = branch_width(layer, state.children[i], samples);
    total += width;
    if (mode == CombineMode::concat || width == first) continue;
    throw ShapeError(
        fmt::format("{}: combine_mode '{}' needs branches of one size, but branch 0 gives {} values per sample and "
                    "branch {} gives {}",
                    describe(layer), layer.config.combine_mode, first, i, width));
  }
  return mode == CombineMode::concat ? total : first;
}

/// Values per sample of the gate, of which the first are used. Throws ShapeError if there are fewer than branches.
template <class State>
std::size_t gate_width(const Layer& layer, const State& gate, std::size_t samples) {
  const std::size_t width = branch_width(layer, gate, samples);
  if (width < layer.branches.size()) {
    throw ShapeError(fmt::format("{}: its filter gate gives {} values per sample for {} branches", describe(layer),
                                 width, layer.branches.size()));
  }
  return width;
}

}  // namespace imago::layers
