#pragma once

// What containers share on the CPU and the GPU: how the layers inside them are found, walked and checked. `State` is
// LayerState or its counterpart on a device, `AnyTensor` a tensor in it.

#include <cstddef>
#include <functional>

#include "layers/settings.h"

namespace imago::layers {

/// The layer that runs in the place of a branch or sub-layer: itself or, for a remote link, the grid layer that it
/// names. A disabled link stays itself, since nothing of it runs. Throws UsageError for a link without a grid and for a
/// target outside it.
Layer& resolve(Layer& child, Run& run);

/// Where the weight gradient of a branch or sub-layer goes: `own` or, for a remote link, that of its target.
LayerGradient& resolve_gradient(const Layer& child, LayerGradient& own, Run& run);

/// to = from, on all threads; allocates nothing if the shapes are equal.
template <class T>
void copy_tensor(const Tensor<T>& from, Tensor<T>& to);

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

/// Calls forward(sub_layer, index, input, skip), which returns the result, for each enabled sub-layer; `skip` is the
/// input of the one before. Returns the last result.
template <class AnyTensor, class State, class ForwardOne>
const AnyTensor& walk_forward(Layer& layer, const AnyTensor& x, State& state, Run& run, ForwardOne&& forward) {
  state.children.resize(layer.sub_layers.size());
  const AnyTensor* input = &x;
  const AnyTensor* skip = nullptr;
  for (std::size_t i = 0; i < layer.sub_layers.size(); ++i) {
    Layer& sub_layer = resolve(layer.sub_layers[i], run);
    if (sub_layer.config.is_disabled) continue;
    const AnyTensor& result = forward(sub_layer, i, *input, skip);
    skip = input;
    input = &result;
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

/// Values per sample of the result, from the shape_of(index) that each branch gives. Throws ShapeError if the mode
/// needs branches of one size and they differ, or if one does not divide into samples.
std::size_t combined_width(const Layer& layer, std::size_t samples,
                           const std::function<const Shape&(std::size_t index)>& shape_of);

/// Values per sample of the gate, of which the first are used. Throws ShapeError if there are fewer than branches.
std::size_t gate_width(const Layer& layer, const Shape& gate, std::size_t samples);

}  // namespace imago::layers
