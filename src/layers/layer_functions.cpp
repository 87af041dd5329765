#include "layers/layer_functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <vector>

#include "base/system.h"
#include "imago/error.h"
#include "layers/children.h"
#include "weights/random.h"

namespace imago::layers {

namespace {

template <class From, class To>
void convert_tensor(const Tensor<From>& from, Tensor<To>& to) {
  to.resize(from.shape());
  std::ranges::transform(from.values(), to.values().begin(), [](From value) { return static_cast<To>(value); });
}

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
  for_each_child(layer, [&](const Layer& child) { gradient.children.push_back(zero_gradient(child)); });
  return gradient;
}

void forward_layer(Layer& layer, const Tensor<float>& x, const Tensor<float>* skip, LayerState& state, Run& run) {
  if (layer.config.is_disabled) {
    copy_tensor(x, state.post);
    return;
  }
  check_weights(layer);
  state.ran_as = layer.config.type;
  functions_of(layer.config.type).forward(layer, x, skip, state, run);
}

void forward_layer(Layer& layer, const Tensor<double>& x, const Tensor<double>* skip, LayerState& state, Run& run) {
  if (layer.config.is_disabled) {
    copy_tensor(x, state.wide.post);
    return;
  }
  const LayerFunctions& functions = functions_of(layer.config.type);
  if (functions.initialize != nullptr && layer.config.dtype != DType::float64) {
    convert_tensor(x, state.rounded);
    forward_layer(layer, state.rounded, nullptr, state, run);  // Residual, which reads the skip, has no weights
    convert_tensor(state.post, state.wide.post);
    return;
  }
  check_weights(layer);
  state.ran_as = layer.config.type;
  functions.forward_wide(layer, x, skip, state, run);
}

void backward_layer(Layer& layer, const Tensor<float>& x, const Tensor<float>* skip, const Tensor<float>& grad_output,
                    LayerState& state, LayerGradient& gradient, Run& run) {
  if (grad_output.size() != state.post.size()) {
    throw ShapeError(fmt::format("{}: a gradient of shape {} for a result of shape {}", describe(layer),
                                 grad_output.shape().to_string(), state.post.shape().to_string()));
  }
  if (layer.config.is_disabled) {
    copy_tensor(grad_output, state.grad_input);
    return;
  }
  // A Metacognition command may have changed the layer since; what its forward kept does not fit it then.
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

std::size_t required(const LayerConfig& config, int value, std::string_view field) {
  if (value <= 0) throw UsageError(fmt::format("{} needs {} of 1 or more, not {}", name(config.type), field, value));
  return static_cast<std::size_t>(value);
}

WeightShape no_weights(const LayerConfig&) { return {}; }

void initialize_uniform(WeightStore& weights, std::uint64_t seed, std::size_t first, std::size_t count) {
  constexpr float kRange = 0.1f;
  fill_uniform(weights.edit_master().subspan(first, count), derive_seed(seed, first), kRange);
}

void check_memory(std::size_t values, std::string_view who, std::string_view what) {
  constexpr std::size_t kNotWorthAsking = std::size_t{1} << 28;
  if (values <= kNotWorthAsking) return;
  const std::uint64_t memory = inspect_machine().memory_bytes;
  if (memory == 0 || values <= memory / sizeof(float)) return;
  constexpr double kGiB = 1 << 30;
  throw UsageError(fmt::format("{}: {} {} take {:.1f} GiB, and this machine has {:.1f} GiB", who, values, what,
                               static_cast<double>(values) * sizeof(float) / kGiB, static_cast<double>(memory) / kGiB));
}

void initialize_constant(WeightStore& weights, std::size_t first, std::size_t count, float value) {
  std::ranges::fill(weights.edit_master().subspan(first, count), value);
}

void initialize_matrix(const LayerConfig&, WeightStore& weights, std::uint64_t seed) {
  initialize_uniform(weights, seed, 0, weights.count());
}

}  // namespace imago::layers
