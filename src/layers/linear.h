#pragma once

// What layers with matrices share: y = f(x · Wᵀ + b) for a matrix inside a layer's weight array, and its gradient.
// Products use packed weights and our kernels when a network runs, decoded weights and math::gemm when it is trained;
// over doubles, float64 codes and math::gemm.

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "base/parallel.h"
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
/// REQUIRES: a layer of type float64.
void linear_forward(const Layer& layer, const Linear& part, std::span<const double> x, std::size_t batch,
                    std::span<double> y, const Run& run);

/// From grad_y[batch][rows]: grad_w and grad_b are added into `gradient` (the layer's whole array) and
/// grad_x[batch][cols] is written, or added to where `add_input` says so; an empty grad_x is left out.
void linear_backward(const Layer& layer, const Linear& part, std::span<const float> x, std::size_t batch,
                     std::span<const float> grad_y, std::span<float> gradient, std::span<float> grad_x,
                     bool add_input = false);

/// Wq of a part of the array: biases, norms. In doubles: the codes of a layer of type float64.
template <class T = float>
std::span<const T> weights_of(const Layer& layer, std::size_t first, std::size_t count);
template <>
std::span<const float> weights_of(const Layer& layer, std::size_t first, std::size_t count);
template <>
std::span<const double> weights_of(const Layer& layer, std::size_t first, std::size_t count);

/// The kernels' name of a layer's function; ids that no function has are linear.
kernels::Activation kernel_function(Activation activation) noexcept;

/// y = f(z); and grad_z = grad_y · f'(z). All of one length; y may be z, grad_z may be grad_y.
void apply_activation(Activation activation, std::span<const float> z, std::span<float> y);
void apply_activation(Activation activation, std::span<const double> z, std::span<double> y);
void activation_backward(Activation activation, std::span<const float> z, std::span<const float> grad_y,
                         std::span<float> grad_z);

/// What layers with z and result = f(z) of one shape share. `pre_activation` gives the memory for z once state.post has
/// its shape: saved[0] if backward will need z, else the result itself. `grad_pre_activation` is grad_output · f'(z),
/// in scratch[0] unless f is linear.
template <class T>
std::span<T> pre_activation(const Layer& layer, LayerState& state, const Run& run) {
  LayerValues<T>& own = state.values<T>();
  if (!run.for_backward || layer.config.activation == Activation::linear) return own.post.values();
  own.saved.resize(1);
  own.saved[0].resize(own.post.shape());
  return own.saved[0].values();
}
std::span<const float> grad_pre_activation(const Layer& layer, const Tensor<float>& grad_output, LayerState& state);

/// RMS norms inside other layers (q_norm, k_norm, inner_norm): y = x / sqrt(mean(x²) + eps) · weight for one row of
/// weight.size() values, or for many rows on the pool. Their weights are settings, not parameters: gradients pass
/// through them, and none is kept for them. `y` may be `x`, `grad_x` may be `grad_y`.
template <class T>
void norm_row(const T* x, std::span<const float> weight, double eps, T* y) noexcept;
void norm_row_backward(const float* x, std::span<const float> weight, double eps, const float* grad_y,
                       float* grad_x) noexcept;
template <class T>
void norm_rows(std::span<const T> x, std::span<const float> weight, double eps, std::span<T> y);
void norm_rows_backward(std::span<const float> x, std::span<const float> weight, double eps,
                        std::span<const float> grad_y, std::span<float> grad_x);

/// Σ value(i), i < count, in double: eight independent sums, which compilers turn into vectors.
template <class Value>
double lane_sum(std::size_t count, Value&& value) {
  constexpr std::size_t kSums = 8;
  double sums[kSums] = {};
  std::size_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (std::size_t j = 0; j < kSums; ++j) sums[j] += static_cast<double>(value(i + j));
  }
  for (; i < count; ++i) sums[i % kSums] += static_cast<double>(value(i));
  double total = 0;
  for (const double s : sums) total += s;
  return total;
}

/// sums[c] += Σ value(row, c) over `rows` rows. Each sum runs in the order of the rows, in double, on one thread.
template <class Value>
void add_column_sums(std::size_t rows, std::span<float> sums, Value&& value) {
  constexpr std::size_t kColumns = 64;             // summed together: whole cache lines, so no two threads share one
  constexpr std::size_t kValuesPerThread = 16384;  // some 10 µs of adding
  const std::size_t chunks = (sums.size() + kColumns - 1) / kColumns;
  const std::size_t grain = kValuesPerThread / (rows * kColumns + 1) + 1;
  parallel_for(chunks, grain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t chunk = begin; chunk < end; ++chunk) {
      const std::size_t first = chunk * kColumns;
      const std::size_t count = std::min(kColumns, sums.size() - first);
      std::array<double, kColumns> totals{};
      for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t c = 0; c < count; ++c) totals[c] += static_cast<double>(value(row, first + c));
      }
      for (std::size_t c = 0; c < count; ++c) sums[first + c] += static_cast<float>(totals[c]);
    }
  });
}

/// Rows of `width` values in x. Throws ShapeError, naming the layer, if that is not a whole number.
std::size_t rows_of(const Layer& layer, const Shape& x, std::size_t width);
template <class T>
std::size_t rows_of(const Layer& layer, const Tensor<T>& x, std::size_t width) {
  return rows_of(layer, x.shape(), width);
}

/// Gives `result` the shape of x with rows of `new_width`: its last extent replaced where that is `width`, else
/// [rows, new_width]. Allocates nothing if `result` has that shape. REQUIRES: x consists of rows of `width` values.
template <class T>
void resize_rows(Tensor<T>& result, const Tensor<T>& x, std::size_t width, std::size_t new_width) {
  const std::span<const std::size_t> from = x.shape().extents();
  const std::size_t rows = x.size() / width;
  const bool keeps_shape = !from.empty() && from.back() == width;
  resize_outer(result, keeps_shape ? from.first(from.size() - 1) : std::span(&rows, 1), new_width);
}

}  // namespace imago::layers
