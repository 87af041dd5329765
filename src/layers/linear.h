#pragma once

// y = x · Wᵀ + b for a matrix inside a layer's weight array: packed weights on our kernels when a network is used,
// decoded ones through math::gemm when it is trained.

#include <span>

#include "layers/layer_functions.h"
#include "weights/views.h"

namespace imago::layers {

/// `bias_first`: where the bias of `rows` weights begins in the array, or kNoBias.
inline constexpr std::size_t kNoBias = static_cast<std::size_t>(-1);

struct Linear {
  MatrixSlice matrix;
  std::size_t bias_first = kNoBias;
};

/// y[batch][rows]. Throws ShapeError if the spans do not fit.
void linear_forward(const Layer& layer, const Linear& part, std::span<const float> x, std::size_t batch,
                    std::span<float> y, const Run& run);

/// From grad_y[batch][rows]: grad_w and grad_b are added into `gradient` (the layer's whole array) and
/// grad_x[batch][cols] is written, or added to where `add_input` says so; an empty grad_x is left out.
void linear_backward(const Layer& layer, const Linear& part, std::span<const float> x, std::size_t batch,
                     std::span<const float> grad_y, std::span<float> gradient, std::span<float> grad_x,
                     bool add_input = false);

/// Wq of a part of the array: biases, norms.
std::span<const float> weights_of(const Layer& layer, std::size_t first, std::size_t count);

/// The kernels' name of a layer's function.
kernels::Activation kernel_function(Activation activation) noexcept;

/// y = f(z); and grad_z = grad_y · f'(z). All of one length; y may be z, grad_z may be grad_y.
void apply_activation(Activation activation, std::span<const float> z, std::span<float> y);
void activation_backward(Activation activation, std::span<const float> z, std::span<const float> grad_y,
                         std::span<float> grad_z);

/// Rows of `width` values in x; throws ShapeError, naming the layer, if it is no whole number.
std::size_t rows_of(const Layer& layer, const Shape& x, std::size_t width);
inline std::size_t rows_of(const Layer& layer, const Tensor<float>& x, std::size_t width) {
  return rows_of(layer, x.shape(), width);
}

/// Gives `result` the shape of x with rows of `new_width`: its last extent replaced where that is `width`, else
/// [rows, new_width]. Allocates nothing if `result` has that shape. REQUIRES: x consists of rows of `width` values.
void resize_rows(Tensor<float>& result, const Tensor<float>& x, std::size_t width, std::size_t new_width);

}  // namespace imago::layers
