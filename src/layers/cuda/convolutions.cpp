// Convolutions: taps gathered into rows, one product for many samples, and the result, [positions][filters], turned
// around. A transposed convolution is the gradient that a convolution from the filters to the channels gives its input,
// as on the host, with the weights handed over as [C][F][k…].
//
// saved[0]: z, unless f is linear.

#include "layers/convolution.h"

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "kernels/cuda/ops.h"
#include "layers/cuda/convolution_kernels.h"
#include "layers/cuda/gemm.h"
#include "layers/cuda/run.h"
#include "layers/settings.h"

namespace imago::layers::cuda {

namespace {

enum Scratch : std::size_t { kGradZ, kRows, kPositions, kSwapped, kGradSwapped, kScratchCount };

// Taps in work at a time: 256 MiB. More samples per product gain nothing.
constexpr std::size_t kMostTaps = std::size_t{64} << 20;

struct Call {
  ConvolutionSizes sizes;
  math::ConvolutionExtents extents;  // of the whole batch
  std::size_t taps, outputs, inputs;
  std::size_t at_once;  // samples

  float* rows(DeviceState& state, DeviceRun& run) const {
    state.scratch[kRows].resize(*run.device, Shape{at_once, outputs, taps});
    return state.scratch[kRows].data();
  }
};

Call call_of(const ConvolutionSizes& sizes, const math::ConvolutionExtents& extents) {
  Call call{sizes, extents, taps_of(extents), outputs_of(extents), inputs_of(extents), 1};
  const std::size_t each = checked_mul(call.taps, call.outputs, "the taps of a convolution");
  call.at_once =
      std::clamp<std::size_t>(kMostTaps / std::max<std::size_t>(each, 1), 1, std::max<std::size_t>(extents.batch, 1));
  return call;
}

/// body(extents of some samples, the first of them).
template <class Body>
void for_each_piece(const Call& call, const Body& body) {
  for (std::size_t first = 0; first < call.extents.batch; first += call.at_once) {
    math::ConvolutionExtents piece = call.extents;
    piece.batch = std::min(call.at_once, call.extents.batch - first);
    body(piece, first);
  }
}

/// y[b][f][o] from x[b][c][i]; w is [F][taps].
void convolve(const Call& call, const float* x, const float* w, float* y, DeviceState& state, DeviceRun& run) {
  const std::size_t filters = call.extents.filters;
  float* const rows = call.rows(state, run);
  state.scratch[kPositions].resize(*run.device, Shape{call.at_once, call.outputs, filters});
  float* const positions = state.scratch[kPositions].data();
  for_each_piece(call, [&](const math::ConvolutionExtents& piece, std::size_t first) {
    gather_taps(piece, x + first * piece.channels * call.inputs, rows, run.stream);
    gemm({.a = rows,
          .b = w,
          .c = positions,
          .m = piece.batch * call.outputs,
          .n = filters,
          .k = call.taps,
          .b_transposed = true},
         run.stream);
    transpose(positions, y + first * filters * call.outputs, piece.batch, call.outputs, filters, run.stream);
  });
}

/// grad_x[b][c][i] from grad_y[b][f][o].
void convolve_backward_data(const Call& call, const float* grad_y, const float* w, float* grad_x, DeviceState& state,
                            DeviceRun& run) {
  const std::size_t filters = call.extents.filters;
  float* const rows = call.rows(state, run);
  state.scratch[kPositions].resize(*run.device, Shape{call.at_once, call.outputs, filters});
  float* const positions = state.scratch[kPositions].data();
  for_each_piece(call, [&](const math::ConvolutionExtents& piece, std::size_t first) {
    transpose(grad_y + first * filters * call.outputs, positions, piece.batch, filters, call.outputs, run.stream);
    gemm({.a = positions, .b = w, .c = rows, .m = piece.batch * call.outputs, .n = call.taps, .k = filters},
         run.stream);
    sum_taps(piece, rows, grad_x + first * piece.channels * call.inputs, run.stream);
  });
}

/// grad_w[F][taps] += …
void convolve_backward_weights(const Call& call, const float* x, const float* grad_y, float* grad_w, DeviceState& state,
                               DeviceRun& run) {
  const std::size_t filters = call.extents.filters;
  float* const rows = call.rows(state, run);
  state.scratch[kPositions].resize(*run.device, Shape{call.at_once, call.outputs, filters});
  float* const positions = state.scratch[kPositions].data();
  for_each_piece(call, [&](const math::ConvolutionExtents& piece, std::size_t first) {
    transpose(grad_y + first * filters * call.outputs, positions, piece.batch, filters, call.outputs, run.stream);
    gather_taps(piece, x + first * piece.channels * call.inputs, rows, run.stream);
    gemm({.a = positions,
          .b = rows,
          .c = grad_w,
          .m = filters,
          .n = call.taps,
          .k = piece.batch * call.outputs,
          .a_transposed = true,
          .add = true},
         run.stream);
  });
}

/// Gives the result its shape; what comes back takes z.
float* prepare(const Layer& layer, const ConvolutionSizes& sizes, std::size_t batch, DeviceState& state,
               DeviceRun& run) {
  check_memory(checked_mul(batch, sizes.filters * sizes.out_values(), "the result of a convolution"), describe(layer),
               "values of its result");
  std::vector<std::size_t> extents{batch, sizes.filters};
  extents.insert(extents.end(), std::end(sizes.out) - sizes.axes, std::end(sizes.out));
  state.scratch.resize(kScratchCount);
  state.post.resize(*run.device, Shape(std::move(extents)));
  if (!run.for_backward() || kernel_function(layer.config.activation) == kernels::Activation::linear) {
    return state.post.data();
  }
  state.saved.resize(1);
  state.saved[0].resize(*run.device, state.post.shape());
  return state.saved[0].data();
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
  const std::size_t batch = convolution_batch(layer, sizes, x.shape());
  float* const z = prepare(layer, sizes, batch, state, run);
  convolve(call_of(sizes, extents_of(sizes, batch)), x.data(),
           weights_of(layer, 0, weight_shape(layer.config).count(), run), z, state, run);
  finish(layer, z, state, run);
}

void backward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, const DeviceTensor& grad_output,
              DeviceState& state, DeviceRun& run) {
  const ConvolutionSizes sizes = convolution_sizes(layer.config);
  const Call call = call_of(sizes, extents_of(sizes, convolution_batch(layer, sizes, x.shape())));
  state.saved.resize(1);
  const float* const grad_z = grad_of_z(layer, state.saved[0], grad_output, state, kGradZ, run);
  convolve_backward_weights(call, x.data(), grad_z, gradient_of(layer, 0, run), state, run);
  if (!state.needs_grad_input) return;
  state.grad_input.resize(*run.device, x.shape());
  convolve_backward_data(call, grad_z, weights_of(layer, 0, weight_shape(layer.config).count(), run),
                         state.grad_input.data(), state, run);
}

// ---- ConvTransposed1D, 2D, 3D

/// Of the convolution from the result to the input.
Call swapped_call(ConvolutionSizes sizes, std::size_t batch) {
  std::swap(sizes.channels, sizes.filters);
  std::swap(sizes.in, sizes.out);
  return call_of(sizes, extents_of(sizes, batch));
}

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
  const std::size_t batch = convolution_batch(layer, sizes, x.shape());
  float* const z = prepare(layer, sizes, batch, state, run);
  convolve_backward_data(swapped_call(sizes, batch), x.data(), swapped_weights(layer, sizes, state, run), z, state,
                         run);
  finish(layer, z, state, run);
}

void transposed_backward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, const DeviceTensor& grad_output,
                         DeviceState& state, DeviceRun& run) {
  const ConvolutionSizes sizes = convolution_sizes(layer.config);
  const Call call = swapped_call(sizes, convolution_batch(layer, sizes, x.shape()));
  const std::size_t count = weight_shape(layer.config).count();
  state.saved.resize(1);
  const float* const grad_z = grad_of_z(layer, state.saved[0], grad_output, state, kGradZ, run);
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
