#pragma once

// Convolution layers from their definition, in float64, for tests; and layers out of the settings of PyTorch's
// references.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "imago/layer.h"
#include "testing/gradient_check.h"

namespace imago::testing {

/// Sizes as the test states them, so that what the library derives is checked too. Axes that are not there: extent 1,
/// kernel 1.
struct ConvolutionCase {
  std::size_t batch, channels, filters;
  std::size_t in[3], out[3], kernel[3], stride[3], padding[3];
};

/// Calls body(index in the input's side, in [F][C][k…], in the output's side) for all taps inside of
/// large = small · s + k - p, where the sides are [batch][lines][extents].
template <class Body>
void for_each_tap(const ConvolutionCase& e, bool transposed, Body&& body) {
  const auto& small = transposed ? e.in : e.out;
  const auto& large = transposed ? e.out : e.in;
  const std::size_t small_values = small[0] * small[1] * small[2];
  const std::size_t large_values = large[0] * large[1] * large[2];
  const std::size_t kernel_values = e.kernel[0] * e.kernel[1] * e.kernel[2];
  for (std::size_t b = 0; b < e.batch; ++b) {
    for (std::size_t f = 0; f < e.filters; ++f) {
      for (std::size_t c = 0; c < e.channels; ++c) {
        for (std::size_t s = 0; s < small_values; ++s) {
          for (std::size_t k = 0; k < kernel_values; ++k) {
            const std::size_t at[3] = {s / (small[1] * small[2]), s / small[2] % small[1], s % small[2]};
            const std::size_t tap[3] = {k / (e.kernel[1] * e.kernel[2]), k / e.kernel[2] % e.kernel[1],
                                        k % e.kernel[2]};
            std::size_t place = 0;
            bool inside = true;
            for (int axis = 0; axis < 3; ++axis) {
              const std::size_t i = at[axis] * e.stride[axis] + tap[axis] - e.padding[axis];  // huge if below 0
              inside = inside && i < large[axis];
              place = place * large[axis] + i;
            }
            if (!inside) continue;
            const std::size_t w = (f * e.channels + c) * kernel_values + k;
            const std::size_t in_line = b * e.channels + c;
            const std::size_t out_line = b * e.filters + f;
            if (transposed) {
              body(in_line * small_values + s, w, out_line * large_values + place);
            } else {
              body(in_line * large_values + place, w, out_line * small_values + s);
            }
          }
        }
      }
    }
  }
}

/// Before the activation.
inline std::vector<double> convolution_reference(const ConvolutionCase& e, bool transposed, std::span<const double> x,
                                                 std::span<const double> w) {
  std::vector<double> z(e.batch * e.filters * e.out[0] * e.out[1] * e.out[2]);
  for_each_tap(e, transposed,
               [&](std::size_t in, std::size_t weight, std::size_t out) { z[out] += x[in] * w[weight]; });
  return z;
}

/// What the settings of a reference file say.
inline ConvolutionShape torch_convolution(const nlohmann::json& config) {
  ConvolutionShape shape{.channels = config.at("channels"),
                         .filters = config.at("filters"),
                         .kernel = config.at("kernel"),
                         .stride = config.at("stride"),
                         .padding = config.at("padding"),
                         .output_padding = config.value("output_padding", 0)};
  const std::vector<int> extents = config.at("input_shape");
  const std::size_t axes = extents.size() - 2;
  shape.height = axes == 3 ? extents[3] : extents[2];
  if (axes >= 2) shape.width = extents.back();
  if (axes == 3) shape.depth = extents[2];
  return shape;
}

/// Result and gradients against the definition; `e` states what the settings must come to.
inline void expect_convolution(Layer layer, const ConvolutionCase& e, bool transposed, const Shape& output) {
  randomize_layer(layer, 5);
  const Tensor<float> x = random_tensor({e.batch, e.channels, e.in[0], e.in[1], e.in[2]}, 6);
  const bool is_tanh = layer.config.activation == Activation::tanh;
  GradientCheck check;
  check.most = 60;
  check.reference = [&](std::span<const double> values, std::span<const double> weights) {
    std::vector<double> z = convolution_reference(e, transposed, values, weights);
    if (is_tanh) {
      for (double& value : z) value = std::tanh(value);
    }
    return z;
  };
  check_gradients(layer, x, nullptr, check);
  layers::LayerState state;
  layers::Run run;
  layers::forward_layer(layer, x, nullptr, state, run);
  EXPECT_EQ(state.post.shape(), output);
}

}  // namespace imago::testing
