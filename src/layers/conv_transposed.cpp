// ConvTransposed1D, 2D, 3D: post = f(z), z[b][f][i·s - p + k] += x[b][c][i] · W[f][c][k]. That is the gradient that a
// convolution from the filters to the channels gives its input, with x as the gradient of its result: the roles are
// swapped everywhere, and the weights are handed over as [C][F][k…].
//
// saved[0]: z, kept for backward unless f is linear. scratch[1], [2]: the swapped weights and their gradient.

#include <algorithm>
#include <utility>

#include "layers/convolution.h"
#include "layers/linear.h"
#include "layers/shapes.h"
#include "layers/types.h"
#include "math/products.h"

namespace imago::layers {

namespace {

/// Those of the convolution from the result to the input.
math::ConvolutionExtents swapped_extents(ConvolutionSizes sizes, std::size_t batch) {
  std::swap(sizes.channels, sizes.filters);
  std::swap(sizes.in, sizes.out);
  return extents_of(sizes, batch);
}

/// Calls body(index in [F][C][k…], index in [C][F][k…], values) for each kernel.
template <class Body>
void for_each_kernel(const ConvolutionSizes& s, std::size_t weights, Body&& body) {
  const std::size_t values = weights / (s.filters * s.channels);
  for (std::size_t f = 0; f < s.filters; ++f) {
    for (std::size_t c = 0; c < s.channels; ++c) {
      body((f * s.channels + c) * values, (c * s.filters + f) * values, values);
    }
  }
}

std::span<const float> swapped_weights(const Layer& layer, const ConvolutionSizes& sizes, LayerState& state) {
  const std::span<const float> weights = decoded_weights(*layer.weights, layer.config.scheme());
  state.scratch.resize(3);
  resize_to(state.scratch[1], {weights.size()});
  const std::span<float> swapped = state.scratch[1].values();
  for_each_kernel(sizes, weights.size(), [&](std::size_t from, std::size_t to, std::size_t values) {
    std::copy_n(weights.begin() + static_cast<std::ptrdiff_t>(from), values,
                swapped.begin() + static_cast<std::ptrdiff_t>(to));
  });
  return swapped;
}

void forward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, LayerState& state, Run& run) {
  const ConvolutionSizes sizes = convolution_sizes(layer.config);
  const std::size_t batch = convolution_batch(layer, sizes, x.shape());
  const std::span<float> z = prepare_convolution(layer, sizes, batch, state, run);
  math::convolve_backward_data(swapped_extents(sizes, batch), x.values(), swapped_weights(layer, sizes, state), z);
  apply_activation(layer.config.activation, z, state.post.values());
}

void backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
              LayerState& state, LayerGradient& gradient, Run&) {
  const ConvolutionSizes sizes = convolution_sizes(layer.config);
  const math::ConvolutionExtents extents = swapped_extents(sizes, convolution_batch(layer, sizes, x.shape()));
  const std::span<const float> weights = swapped_weights(layer, sizes, state);
  const std::span<const float> grad_z = convolution_grad_z(layer, grad_output, state);
  resize_to(state.scratch[2], {weights.size()});
  const std::span<float> grad_weights = state.scratch[2].values();
  std::ranges::fill(grad_weights, 0.0f);
  math::convolve_backward_weights(extents, grad_z, x.values(), grad_weights);
  for_each_kernel(sizes, weights.size(), [&](std::size_t to, std::size_t from, std::size_t values) {
    for (std::size_t i = 0; i < values; ++i) gradient.weights[to + i] += grad_weights[from + i];
  });
  state.grad_input.resize(x.shape());
  math::convolve(extents, grad_z, weights, state.grad_input.values());
}

constexpr LayerFunctions row(LayerType type) {
  return {type, convolution_weights, initialize_convolution, forward, backward};
}

}  // namespace

const LayerFunctions kConvTransposed1D = row(LayerType::conv_transposed_1d);
const LayerFunctions kConvTransposed2D = row(LayerType::conv_transposed_2d);
const LayerFunctions kConvTransposed3D = row(LayerType::conv_transposed_3d);

}  // namespace imago::layers
