#include "layers/layer_functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

#include "imago/error.h"
#include "layers/types.h"

namespace imago::layers {

namespace {

// In the order of LayerType.
constexpr const LayerFunctions* kTable[kLayerTypes] = {
    &kDense,
    &kMultiHeadAttention,
    &kSwiGlu,
    &kRmsNorm,
    &kCnn1,
    &kCnn2,
    &kCnn3,
    &kRnn,
    &kLstm,
    &kLayerNorm,
    &kConvTransposed1D,
    &kConvTransposed2D,
    &kConvTransposed3D,
    &kEmbedding,
    &kKMeans,
    &kSoftmax,
    &kParallel,
    &kSequential,
    &kResidual,
    &kMetacognition,
};

void copy(const Tensor<float>& from, Tensor<float>& to) {
  to.resize(from.shape());
  std::ranges::copy(from.values(), to.values().begin());
}

}  // namespace

const LayerFunctions& functions_of(LayerType type) noexcept {
  const LayerFunctions* row = kTable[static_cast<std::size_t>(type)];
  assert(row->type == type);
  return *row;
}

void check_weights(const Layer& layer) {
  const LayerFunctions& functions = functions_of(layer.config.type);
  if (functions.initialize == nullptr) return;
  if (!layer.weights) {
    throw UsageError(fmt::format("{} has no weights: initialise the network or load some", describe(layer)));
  }
  const WeightShape shape = functions.weight_shape(layer.config);
  if (layer.weights->count() != shape.count()) {
    throw ShapeError(fmt::format("{} has {} weights, but its settings ask for {}", describe(layer),
                                 layer.weights->count(), shape.count()));
  }
}

LayerGradient zero_gradient(const Layer& layer) {
  LayerGradient gradient;
  if (layer.weights) gradient.weights.resize(layer.weights->count());
  const auto add = [&](const Layer& child) { gradient.children.push_back(zero_gradient(child)); };
  std::ranges::for_each(layer.branches, add);
  if (layer.filter_gate) add(*layer.filter_gate);
  std::ranges::for_each(layer.sub_layers, add);
  if (layer.observed) add(*layer.observed);
  return gradient;
}

void forward_layer(Layer& layer, const Tensor<float>& x, const Tensor<float>* skip, LayerState& state, Run& run) {
  if (layer.config.is_disabled) {
    copy(x, state.post);
    return;
  }
  check_weights(layer);
  state.ran_as = layer.config.type;
  functions_of(layer.config.type).forward(layer, x, skip, state, run);
}

void backward_layer(Layer& layer, const Tensor<float>& x, const Tensor<float>* skip, const Tensor<float>& grad_output,
                    LayerState& state, LayerGradient& gradient, Run& run) {
  if (grad_output.size() != state.post.size()) {
    throw ShapeError(fmt::format("{}: a gradient of shape {} for a result of shape {}", describe(layer),
                                 grad_output.shape().to_string(), state.post.shape().to_string()));
  }
  if (layer.config.is_disabled) {
    copy(grad_output, state.grad_input);
    return;
  }
  // A Metacognition command may have changed the layer since; what its forward kept is then of no use.
  if (state.ran_as != layer.config.type) {
    throw UsageError(
        fmt::format("{} ran as {} in the forward that this backward belongs to", describe(layer), name(state.ran_as)));
  }
  functions_of(layer.config.type).backward(layer, x, skip, grad_output, state, gradient, run);
}

std::string describe(const Layer& layer) {
  const Coordinates& at = layer.at;
  return fmt::format("layer ({},{},{},{}), {}", at.z, at.y, at.x, at.l, name(layer.config.type));
}

}  // namespace imago::layers
