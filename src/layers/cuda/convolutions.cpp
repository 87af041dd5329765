// Convolutions: taps are gathered into rows, multiplied with the weights for many samples at once, and the result,
// [positions][filters], is transposed. A transposed convolution is the gradient that a convolution from the filters to
// the channels gives its input, as on the host, with the weights passed as [C][F][k…].
//
// saved[0]: z, unless f is linear.

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "kernels/cuda/ops.h"
#include "layers/cuda/kernels.h"
#include "layers/cuda/run.h"
#include "layers/settings.h"

namespace imago::layers::cuda {

namespace {

enum Scratch : std::size_t { kGradZ, kRows, kPositions, kSwapped, kGradSwapped, kScratchCount };

// Taps of a chunk at most: 256 MiB. More samples per product would not be faster.
constexpr std::size_t kMostTaps = std::size_t{64} << 20;

/// A convolution of many samples, computed in chunks of them.
struct Call {
  math::ConvolutionExtents extents;  // of the whole batch
  std::size_t taps, outputs, inputs;
  std::size_t chunk;  // samples
};

Call call_of(const math::ConvolutionExtents& extents) {
  Call call{extents, taps_of(extents), outputs_of(extents), inputs_of(extents), 1};
  const std::size_t each = checked_mul(call.taps, call.outputs, "the taps of a convolution");
  call.chunk =
      std::clamp<std::size_t>(kMostTaps / std::max<std::size_t>(each, 1), 1, std::max<std::size_t>(extents.batch, 1));
  return call;
}

/// Calls body(extents of the chunk, its first sample, rows, positions) for each chunk, with memory for its taps and for
/// its values [sample][output][filter].
template <class Body>
void for_each_chunk(const Call& call, DeviceState& state, DeviceRun& run, const Body& body) {
  state.scratch[kRows].resize(*run.device, Shape{call.chunk, call.outputs, call.taps});
  state.scratch[kPositions].resize(*run.device, Shape{call.chunk, call.outputs, call.extents.filters});
  for (std::size_t first = 0; first < call.extents.batch; first += call.chunk) {
    math::ConvolutionExtents chunk = call.extents;
    chunk.batch = std::min(call.chunk, call.extents.batch - first);
    body(chunk, first, state.scratch[kRows].data(), state.scratch[kPositions].data());
  }
}

/// y[b][f][o] from x[b][c][i]; w is [F][taps].
void convolve(const Call& call, const float* x, const float* w, float* y, DeviceState& state, DeviceRun& run) {
  const std::size_t filters = call.extents.filters;
  for_each_chunk(call, state, run, [&](const auto& chunk, std::size_t first, float* rows, float* positions) {
    gather_taps(chunk, x + first * chunk.channels * call.inputs, rows, run.stream);
    gemm({.a = rows,
          .b = w,
          .c = positions,
          .m = chunk.batch * call.outputs,
          .n = filters,
          .k = call.taps,
          .b_transposed = true},
         run.stream);
    transpose(positions, y + first * filters * call.outputs, chunk.batch, call.outputs, filters, run.stream);
  });
}

/// grad_x[b][c][i] from grad_y[b][f][o].
void convolve_backward_data(const Call& call, const float* grad_y, const float* w, float* grad_x, DeviceState& state,
                            DeviceRun& run) {
  const std::size_t filters = call.extents.filters;
  for_each_chunk(call, state, run, [&](const auto& chunk, std::size_t first, float* rows, float* positions) {
    transpose(grad_y + first * filters * call.outputs, positions, chunk.batch, filters, call.outputs, run.stream);
    gemm({.a = positions, .b = w, .c = rows, .m = chunk.batch * call.outputs, .n = call.taps, .k = filters},
         run.stream);
    sum_taps(chunk, rows, grad_x + first * chunk.channels * call.inputs, run.stream);
  });
}

/// grad_w[F][taps] += …
void convolve_backward_weights(const Call& call, const float* x, const float* grad_y, float* grad_w, DeviceState& state,
                               DeviceRun& run) {
  const std::size_t filters = call.extents.filters;
  for_each_chunk(call, state, run, [&](const auto& chunk, std::size_t first, float* rows, float* positions) {
    transpose(grad_y + first * filters * call.outputs, positions, chunk.batch, filters, call.outputs, run.stream);
    gather_taps(chunk, x + first * chunk.channels * call.inputs, rows, run.stream);
    gemm({.a = positions,
          .b = rows,
          .c = grad_w,
          .m = filters,
          .n = call.taps,
          .k = chunk.batch * call.outputs,
          .a_transposed = true,
          .add = true},
         run.stream);
  });
}

std::size_t batch_of(const Layer& layer, const ConvolutionSizes& sizes, const DeviceTensor& x) {
  return rows_of(layer, x.shape(), sizes.channels * sizes.in_values());
}

/// Gives the result its shape; what comes back takes z.
float* prepare(const Layer& layer, const ConvolutionSizes& sizes, std::size_t batch, DeviceState& state,
               DeviceRun& run) {
  std::size_t memory[5];
  const std::span<const std::size_t> extents = convolution_result(layer, sizes, batch, memory);
  state.scratch.resize(kScratchCount);
  state.post.resize(*run.device, Shape(std::vector(extents.begin(), extents.end())));
  return pre_activation(layer, state, run);
}

void finish(const Layer& layer, const float* z, DeviceState& state, DeviceRun& run) {
  const kernels::Activation function = kernel_function(layer.config.activation);
  if (function == kernels::Activation::linear || state.post.size() == 0) return;
  kernels::cuda::activate(function, z, nullptr, state.post.data(), 1, state.post.size(), {}, run.stream);
}

// ---- CNN1, CNN2, CNN3

void forward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, DeviceState& state, LayerState&,
             DeviceRun& run) {
  const ConvolutionSizes sizes = convolution_sizes(layer.config);
  const std::size_t batch = batch_of(layer, sizes, x);
  float* const z = prepare(layer, sizes, batch, state, run);
  convolve(call_of(extents_of(sizes, batch)), x.data(), weights_of(layer, 0, weight_shape(layer.config).count(), run),
           z, state, run);
  finish(layer, z, state, run);
}

void backward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, const DeviceTensor& grad_output,
              DeviceState& state, DeviceRun& run) {
  const ConvolutionSizes sizes = convolution_sizes(layer.config);
  const Call call = call_of(extents_of(sizes, batch_of(layer, sizes, x)));
  const float* const grad_z = grad_pre_activation(layer, grad_output, state, kGradZ, run);
  convolve_backward_weights(call, x.data(), grad_z, gradient_of(layer, 0, run), state, run);
  if (!state.needs_grad_input) return;
  state.grad_input.resize(*run.device, x.shape());
  convolve_backward_data(call, grad_z, weights_of(layer, 0, weight_shape(layer.config).count(), run),
                         state.grad_input.data(), state, run);
}

// ---- ConvTransposed1D, 2D, 3D

std::size_t kernel_values(const Layer& layer, const ConvolutionSizes& sizes) {
  return weight_shape(layer.config).cols / sizes.channels;
}

const float* swapped_weights(const Layer& layer, const ConvolutionSizes& sizes, DeviceState& state, DeviceRun& run) {
  const std::size_t count = weight_shape(layer.config).count();
  state.scratch[kSwapped].resize(*run.device, Shape{count});
  swap_filters(weights_of(layer, 0, count, run), state.scratch[kSwapped].data(), sizes.filters, sizes.channels,
               kernel_values(layer, sizes), false, run.stream);
  return state.scratch[kSwapped].data();
}

void transposed_forward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, DeviceState& state, LayerState&,
                        DeviceRun& run) {
  const ConvolutionSizes sizes = convolution_sizes(layer.config);
  const std::size_t batch = batch_of(layer, sizes, x);
  float* const z = prepare(layer, sizes, batch, state, run);
  convolve_backward_data(call_of(swapped_extents(sizes, batch)), x.data(), swapped_weights(layer, sizes, state, run), z,
                         state, run);
  finish(layer, z, state, run);
}

void transposed_backward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, const DeviceTensor& grad_output,
                         DeviceState& state, DeviceRun& run) {
  const ConvolutionSizes sizes = convolution_sizes(layer.config);
  const Call call = call_of(swapped_extents(sizes, batch_of(layer, sizes, x)));
  const std::size_t count = weight_shape(layer.config).count();
  const float* const grad_z = grad_pre_activation(layer, grad_output, state, kGradZ, run);
  state.scratch[kGradSwapped].resize(*run.device, Shape{count});
  float* const grad_swapped = state.scratch[kGradSwapped].data();
  run.stream.fill_zero(grad_swapped, count * sizeof(float));
  convolve_backward_weights(call, grad_z, x.data(), grad_swapped, state, run);
  swap_filters(grad_swapped, gradient_of(layer, 0, run), sizes.channels, sizes.filters, kernel_values(layer, sizes),
               true, run.stream);
  state.grad_input.resize(*run.device, x.shape());
  convolve(call, grad_z, swapped_weights(layer, sizes, state, run), state.grad_input.data(), state, run);
}

}  // namespace

const DeviceFunctions kConvolution{forward, backward};
const DeviceFunctions kTransposedConvolution{transposed_forward, transposed_backward};

}  // namespace imago::layers::cuda
