#include "layers/convolution.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "imago/error.h"
#include "layers/linear.h"
#include "layers/settings.h"
#include "layers/shapes.h"

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

/// The fields in the order depth, height, width; 0 where neither the field nor its stand-in is set.
void read_axes(const LayerConfig& config, const Fields& fields, bool height_stands_in, std::size_t (&extents)[3]) {
  const std::size_t axes = axes_of(config.type);
  const std::size_t height = optional_setting(config, fields.height, 0, "a height");
  const std::size_t stand_in = height_stands_in ? height : 0;
  const std::size_t width = optional_setting(config, fields.width, stand_in, "a width");
  extents[0] = axes == 3 ? optional_setting(config, fields.depth, stand_in, "a depth") : 1;
  extents[1] = axes >= 2 ? height : 1;
  extents[2] = config.type == LayerType::cnn1 ? height : width;
}

/// The output size that the others make.
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

WeightShape convolution_weights(const LayerConfig& config) {
  const std::size_t filters = required(config, config.filters, "filters");
  const std::size_t kernel = optional_setting(config, config.kernel_size, 1, "kernel_size");
  std::size_t cols = required(config, config.input_channels, "input_channels");
  for (std::size_t axis = 0; axis < axes_of(config.type); ++axis) {
    cols = checked_mul(cols, kernel, "the weights of a convolution");
  }
  checked_mul(filters, cols, "the weights of a convolution");
  return {.rows = filters, .cols = cols};
}

void initialize_convolution(const LayerConfig&, WeightStore& weights, std::uint64_t seed) {
  initialize_uniform(weights, seed, 0, weights.count());
}

std::size_t convolution_batch(const Layer& layer, const ConvolutionSizes& sizes, const Shape& x) {
  return rows_of(layer, x, sizes.channels * sizes.in_values());
}

std::span<float> prepare_convolution(const Layer& layer, const ConvolutionSizes& sizes, std::size_t batch,
                                     LayerState& state, const Run& run) {
  // Output sizes and paddings are settings, and nothing else bounds them.
  check_memory(checked_mul(batch, sizes.filters * sizes.out_values(), "the result of a convolution"), describe(layer),
               "values of its result");
  std::size_t extents[5] = {batch, sizes.filters};
  std::copy(std::end(sizes.out) - sizes.axes, std::end(sizes.out), extents + 2);
  resize_to(state.post, std::span(extents, 2 + sizes.axes));
  if (!run.for_backward || layer.config.activation == Activation::linear) return state.post.values();
  state.saved.resize(1);
  state.saved[0].resize(state.post.shape());
  return state.saved[0].values();
}

std::span<const float> convolution_grad_z(const Layer& layer, const Tensor<float>& grad_output, LayerState& state) {
  if (layer.config.activation == Activation::linear) return grad_output.values();
  state.scratch.resize(std::max<std::size_t>(1, state.scratch.size()));
  state.scratch[0].resize(state.post.shape());
  activation_backward(layer.config.activation, state.saved[0].values(), grad_output.values(),
                      state.scratch[0].values());
  return state.scratch[0].values();
}

}  // namespace imago::layers
