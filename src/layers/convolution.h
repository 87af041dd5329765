#pragma once

// What convolutions and transposed convolutions share: sizes out of settings, weights, shapes of results.

#include <cstddef>
#include <span>

#include "layers/layer_functions.h"
#include "math/products.h"

namespace imago::layers {

/// Effective sizes (spec/layers.md §4.4, §4.10). Axes that the type does not have, in front, are 1.
struct ConvolutionSizes {
  std::size_t axes, channels, filters, kernel, stride, padding;
  std::size_t in[3], out[3];  ///< depth, height, width; one axis is the width
  std::size_t in_values() const noexcept { return in[0] * in[1] * in[2]; }
  std::size_t out_values() const noexcept { return out[0] * out[1] * out[2]; }
};

/// Throws UsageError, naming the type, for settings that make no valid layer; ShapeError for sizes that overflow.
ConvolutionSizes convolution_sizes(const LayerConfig& config);

/// What the products of math/ take: kernel, stride and padding on the axes that there are.
math::ConvolutionExtents extents_of(const ConvolutionSizes& sizes, std::size_t batch);

/// [F][C · k^axes], for both kinds.
WeightShape convolution_weights(const LayerConfig& config);
void initialize_convolution(const LayerConfig& config, WeightStore& weights, std::uint64_t seed);

/// Samples in x. Throws ShapeError, naming the layer, if it is no whole number.
std::size_t convolution_batch(const Layer& layer, const ConvolutionSizes& sizes, const Shape& x);

/// Gives the result its shape, [batch][F][spatial…]. What comes back takes z: saved[0], or the result itself where
/// nobody needs z any more.
std::span<float> prepare_convolution(const Layer& layer, const ConvolutionSizes& sizes, std::size_t batch,
                                     LayerState& state, const Run& run);

/// grad_output · f'(z), in scratch[0] where f is not linear.
std::span<const float> convolution_grad_z(const Layer& layer, const Tensor<float>& grad_output, LayerState& state);

}  // namespace imago::layers
