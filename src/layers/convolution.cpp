// CNN1–3: post = f(z), z[b][f][o] = Σ x[b][c][o·s + k - p] · W[f][c][k].
//
// ConvTransposed1D–3D: post = f(z), z[b][f][i·s - p + k] += x[b][c][i] · W[f][c][k]. That is the gradient that a
// convolution from the filters to the channels gives its input, with x as the gradient of its result: the roles are
// swapped everywhere, and the weights are passed as [C][F][k…].
//
// saved[0]: z, kept for backward unless f is linear. scratch[1], [2] of transposed convolutions: the swapped weights
// and their gradient.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "imago/error.h"
#include "layers/settings.h"
#include "math/products.h"

namespace imago::layers {

namespace {

bool is_transposed(LayerType type) noexcept { return type >= LayerType::conv_transposed_1d; }

std::size_t axes_of(LayerType type) noexcept {
  const LayerType first = is_transposed(type) ? LayerType::conv_transposed_1d : LayerType::cnn1;
  return static_cast<std::size_t>(type) - static_cast<std::size_t>(first) + 1;
}

/// A setting that may be left out.
std::size_t optional_setting(const LayerConfig& config, int value, std::size_t otherwise, std::string_view field) {
  if (value < 0) throw UsageError(fmt::format("{} has {} of {}, below 0", name(config.type), field, value));
  return value == 0 ? otherwise : static_cast<std::size_t>(value);
}

struct Fields {
  int depth, height, width;
};

/// Depth, height and width; 0 where neither the field nor the height that stands in for it is set.
void read_axes(const LayerConfig& config, const Fields& fields, bool height_stands_in, std::size_t (&extents)[3]) {
  const std::size_t axes = axes_of(config.type);
  const std::size_t height = optional_setting(config, fields.height, 0, "a height");
  const std::size_t stand_in = height_stands_in ? height : 0;
  const std::size_t width = optional_setting(config, fields.width, stand_in, "a width");
  extents[0] = axes == 3 ? optional_setting(config, fields.depth, stand_in, "a depth") : 1;
  extents[1] = axes >= 2 ? height : 1;
  extents[2] = config.type == LayerType::cnn1 ? height : width;
}

/// The output size that follows from the other settings.
std::size_t natural_output(const LayerConfig& config, const ConvolutionSizes& s, std::size_t in) {
  const auto wide = [](std::size_t value) { return static_cast<std::int64_t>(value); };  // all come from int
  const std::size_t more = optional_setting(config, config.output_padding, 0, "output_padding");
  const std::int64_t room = wide(in) + 2 * wide(s.padding) - wide(s.kernel);
  const std::int64_t out = is_transposed(config.type)
                               ? wide(in - 1) * wide(s.stride) - 2 * wide(s.padding) + wide(s.kernel) + wide(more)
                               : (room < 0 ? 0 : room / wide(s.stride) + 1);
  if (out <= 0) {
    throw UsageError(fmt::format("{} has no output: input {}, kernel {}, stride {}, padding {}", name(config.type), in,
                                 s.kernel, s.stride, s.padding));
  }
  return static_cast<std::size_t>(out);
}

}  // namespace

ConvolutionSizes convolution_sizes(const LayerConfig& config) {
  ConvolutionSizes s{.axes = axes_of(config.type),
                     .channels = required(config, config.input_channels, "input_channels"),
                     .filters = required(config, config.filters, "filters"),
                     .kernel = optional_setting(config, config.kernel_size, 1, "kernel_size"),
                     .stride = optional_setting(config, config.stride, 1, "stride"),
                     .padding = optional_setting(config, config.padding, 0, "padding"),
                     .in = {},
                     .out = {}};
  read_axes(config, {config.input_depth, config.input_height, config.input_width}, true, s.in);
  read_axes(config, {config.output_depth, config.output_height, config.output_width}, s.axes == 1, s.out);
  for (std::size_t axis = 3 - s.axes; axis < 3; ++axis) {
    if (s.in[axis] == 0) throw UsageError(fmt::format("{} needs the size of its input", name(config.type)));
    if (s.out[axis] == 0) s.out[axis] = natural_output(config, s, s.in[axis]);
  }
  for (const auto& [lines, extents] : {std::pair{s.channels, s.in}, std::pair{s.filters, s.out}}) {
    std::size_t values = lines;
    for (int axis = 0; axis < 3; ++axis) values = checked_mul(values, extents[axis], "a sample of a convolution");
  }
  return s;
}

math::ConvolutionExtents extents_of(const ConvolutionSizes& s, std::size_t batch) {
  math::ConvolutionExtents e{.batch = batch,
                             .channels = s.channels,
                             .filters = s.filters,
                             .in = {s.in[0], s.in[1], s.in[2]},
                             .out = {s.out[0], s.out[1], s.out[2]},
                             .kernel = {1, 1, 1},
                             .stride = {1, 1, 1},
                             .padding = {0, 0, 0}};
  for (std::size_t axis = 3 - s.axes; axis < 3; ++axis) {
    e.kernel[axis] = s.kernel;
    e.stride[axis] = s.stride;
    e.padding[axis] = s.padding;
  }
  return e;
}

math::ConvolutionExtents swapped_extents(ConvolutionSizes sizes, std::size_t batch) {
  std::swap(sizes.channels, sizes.filters);
  std::swap(sizes.in, sizes.out);
  return extents_of(sizes, batch);
}

std::span<const std::size_t> convolution_result(const Layer& layer, const ConvolutionSizes& sizes, std::size_t batch,
                                                std::size_t (&extents)[5]) {
  // Output sizes and paddings are settings, and nothing else bounds them.
  check_memory(checked_mul(batch, sizes.filters * sizes.out_values(), "the result of a convolution"), describe(layer),
               "values of its result");
  extents[0] = batch;
  extents[1] = sizes.filters;
  std::copy(std::end(sizes.out) - sizes.axes, std::end(sizes.out), extents + 2);
  return std::span(extents, 2 + sizes.axes);
}

namespace {

/// [F][C · k^axes], for both kinds.
WeightShape shape_of(const LayerConfig& config) {
  const std::size_t filters = required(config, config.filters, "filters");
  const std::size_t kernel = optional_setting(config, config.kernel_size, 1, "kernel_size");
  std::size_t cols = required(config, config.input_channels, "input_channels");
  for (std::size_t axis = 0; axis < axes_of(config.type); ++axis) {
    cols = checked_mul(cols, kernel, "the weights of a convolution");
  }
  checked_mul(filters, cols, "the weights of a convolution");
  return {.rows = filters, .cols = cols, .decoded = true};
}

template <class T>
std::size_t batch_of(const Layer& layer, const ConvolutionSizes& sizes, const Tensor<T>& x) {
  return rows_of(layer, x, sizes.channels * sizes.in_values());
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

template <class T>
std::span<const T> swapped_weights(const Layer& layer, const ConvolutionSizes& sizes, LayerState& state) {
  const std::span<const T> weights = weights_of<T>(layer, 0, layer.weights->count());
  std::vector<Tensor<T>>& scratch = state.values<T>().scratch;
  scratch.resize(3);
  resize_to(scratch[1], {weights.size()});
  const std::span<T> swapped = scratch[1].values();
  for_each_kernel(sizes, weights.size(), [&](std::size_t from, std::size_t to, std::size_t values) {
    std::copy_n(weights.begin() + static_cast<std::ptrdiff_t>(from), values,
                swapped.begin() + static_cast<std::ptrdiff_t>(to));
  });
  return swapped;
}

template <class T>
void forward(Layer& layer, const Tensor<T>& x, const Tensor<T>*, LayerState& state, Run& run) {
  const ConvolutionSizes sizes = convolution_sizes(layer.config);
  const std::size_t batch = batch_of(layer, sizes, x);
  std::size_t extents[5];
  Tensor<T>& post = state.values<T>().post;
  resize_to(post, convolution_result(layer, sizes, batch, extents));
  const std::span<T> z = pre_activation<T>(layer, state, run);
  if (is_transposed(layer.config.type)) {
    math::convolve_backward_data(swapped_extents(sizes, batch), x.values(), swapped_weights<T>(layer, sizes, state), z);
  } else {
    math::convolve(extents_of(sizes, batch), x.values(), weights_of<T>(layer, 0, layer.weights->count()), z);
  }
  apply_activation(layer.config.activation, z, post.values());
}

void backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
              LayerState& state, LayerGradient& gradient, Run&) {
  const ConvolutionSizes sizes = convolution_sizes(layer.config);
  const std::size_t batch = batch_of(layer, sizes, x);
  const std::span<const float> grad_z = grad_pre_activation(layer, grad_output, state);
  if (state.needs_grad_input) state.grad_input.resize(x.shape());
  const std::span<float> grad_x = state.grad_input.values();
  if (!is_transposed(layer.config.type)) {
    const math::ConvolutionExtents extents = extents_of(sizes, batch);
    math::convolve_backward_weights(extents, x.values(), grad_z, gradient.weights);
    if (!state.needs_grad_input) return;
    const std::span<const float> weights = decoded_weights(*layer.weights, layer.config.scheme());
    return math::convolve_backward_data(extents, grad_z, weights, grad_x);
  }
  const math::ConvolutionExtents extents = swapped_extents(sizes, batch);
  const std::span<const float> weights = swapped_weights<float>(layer, sizes, state);
  resize_to(state.scratch[2], {weights.size()});
  const std::span<float> grad_weights = state.scratch[2].values();
  std::ranges::fill(grad_weights, 0.0f);
  math::convolve_backward_weights(extents, grad_z, x.values(), grad_weights);
  for_each_kernel(sizes, weights.size(), [&](std::size_t to, std::size_t from, std::size_t values) {
    for (std::size_t i = 0; i < values; ++i) gradient.weights[to + i] += grad_weights[from + i];
  });
  if (state.needs_grad_input) math::convolve(extents, grad_z, weights, grad_x);
}

constexpr LayerFunctions functions(LayerType type) {
  return {type, shape_of, initialize_matrix, forward<float>, forward<double>, backward};
}

}  // namespace

const LayerFunctions kCnn1 = functions(LayerType::cnn1);
const LayerFunctions kCnn2 = functions(LayerType::cnn2);
const LayerFunctions kCnn3 = functions(LayerType::cnn3);
const LayerFunctions kConvTransposed1D = functions(LayerType::conv_transposed_1d);
const LayerFunctions kConvTransposed2D = functions(LayerType::conv_transposed_2d);
const LayerFunctions kConvTransposed3D = functions(LayerType::conv_transposed_3d);

}  // namespace imago::layers
