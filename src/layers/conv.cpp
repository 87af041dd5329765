// CNN1, CNN2, CNN3: post = f(z), z[b][f][o] = Σ x[b][c][o·s + k - p] · W[f][c][k]. saved[0]: z, kept for backward
// unless f is linear.

#include "layers/convolution.h"
#include "layers/linear.h"
#include "layers/types.h"
#include "math/products.h"

namespace imago::layers {

namespace {

void forward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, LayerState& state, Run& run) {
  const ConvolutionSizes sizes = convolution_sizes(layer.config);
  const std::size_t batch = convolution_batch(layer, sizes, x.shape());
  const std::span<float> z = prepare_convolution(layer, sizes, batch, state, run);
  math::convolve(extents_of(sizes, batch), x.values(), decoded_weights(*layer.weights, layer.config.scheme()), z);
  apply_activation(layer.config.activation, z, state.post.values());
}

void backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
              LayerState& state, LayerGradient& gradient, Run&) {
  const ConvolutionSizes sizes = convolution_sizes(layer.config);
  const math::ConvolutionExtents extents = extents_of(sizes, convolution_batch(layer, sizes, x.shape()));
  const std::span<const float> grad_z = convolution_grad_z(layer, grad_output, state);
  math::convolve_backward_weights(extents, x.values(), grad_z, gradient.weights);
  if (!state.needs_grad_input) return;
  state.grad_input.resize(x.shape());
  math::convolve_backward_data(extents, grad_z, decoded_weights(*layer.weights, layer.config.scheme()),
                               state.grad_input.values());
}

constexpr LayerFunctions row(LayerType type) {
  return {type, convolution_weights, initialize_convolution, forward, backward};
}

}  // namespace

const LayerFunctions kCnn1 = row(LayerType::cnn1);
const LayerFunctions kCnn2 = row(LayerType::cnn2);
const LayerFunctions kCnn3 = row(LayerType::cnn3);

}  // namespace imago::layers
