// Steps of a pass that hand states on from token to token.

#include "backend/cuda/pass.h"

namespace imago::backend::cuda {

void Pass::run(const Convolve& step) {
  const ShortConv& conv = step.conv;
  const auto gate_of = [&](const std::optional<Gate>& gate) { return gate ? buffer(gate->by) : nullptr; };
  const bool is_channels = conv.out == Slot::channels;
  kernels::cuda::short_conv({.x = buffer(Slot::channels),
                             .x_gate = gate_of(step.in_gate),
                             .y = is_channels ? convolved_.data() : buffer(conv.out),
                             .y_gate = gate_of(step.out_gate),
                             .taps = part_.vector(conv.taps),
                             .bias = part_.vector(conv.bias),
                             .channels = sizes_->channels,
                             .kernel = conv.kernel,
                             .state_at = conv.state,
                             .silu = conv.activation == kernels::Activation::silu},
                            places_.states(index_), stream_);
  is_convolved_ = is_channels;
}

void Pass::run(const Scale& step) {
  kernels::cuda::scale(buffer(step.at), step.factor, tokens_ * sizes_->of(step.at), stream_);
}

void Pass::run(const Scan& step) {
  if (const auto* const linear = std::get_if<LinearScan>(&step.scan)) {
    kernels::cuda::linear_scan({.shape = linear->shape,
                                .channels = buffer(Slot::channels),
                                .step = buffer(Slot::step),
                                .gate = linear->shape.delta ? buffer(Slot::input_gate) : nullptr,
                                .step_bias = part_.vector(linear->step_bias),
                                .decay_rate = part_.vector(linear->decay_rate),
                                .skip = part_.vector(linear->skip),
                                .low_step = linear->low_step,
                                .high_step = linear->high_step,
                                .y = buffer(Slot::scanned),
                                .state_at = linear->state},
                               places_.states(index_), stream_);
  } else {
    const auto& channels = std::get<ChannelScan>(step.scan);
    kernels::cuda::channel_scan({.x = buffer(Slot::channels),
                                 .step = buffer(Slot::step),
                                 .inputs = buffer(Slot::input_gate),
                                 .step_bias = part_.vector(channels.step_bias),
                                 .decay_rate = part_.vector(channels.decay_rate),
                                 .skip = part_.vector(channels.skip),
                                 .y = buffer(Slot::scanned),
                                 .channels = sizes_->channels,
                                 .states = channels.states,
                                 .state_at = channels.state},
                                places_.states(index_), stream_);
  }
  const std::size_t cols = sizes_->scanned;
  float* const results = buffer(Slot::scanned);
  if (step.norm) {
    kernels::cuda::norm_and_gate({.x = results,
                                  .rows = tokens_,
                                  .cols = cols,
                                  .values = part_.weights.vector(step.norm->weight)->size() / step.norm->groups,
                                  .groups = step.norm->groups,
                                  .weight = part_.vector(step.norm->weight),
                                  .eps = step.norm->eps,
                                  .gate = step.gate ? buffer(step.gate->by) : nullptr,
                                  .activation = step.gate ? step.gate->activation : kernels::Activation::linear,
                                  .gate_first = step.gate_first},
                                 stream_);
  } else if (step.gate) {
    kernels::cuda::activate(step.gate->activation, buffer(step.gate->by), results, results, tokens_, cols, {}, stream_);
  }
}

}  // namespace imago::backend::cuda
