// RNN and LSTM, forward. The products with x are one for all steps; only those with h wait for each other. scratch: the
// sums of all steps, the products of one, h and c.

#include "layers/recurrent.h"

#include "layers/cuda/run.h"
#include "layers/cuda/sequence_kernels.h"

namespace imago::layers::cuda {

namespace {

constexpr std::size_t kGates = 4;
enum Scratch : std::size_t { kSums, kProducts, kH, kC, kScratchCount };

RecurrentSizes sizes_of(const Layer& layer, const Shape& x) {
  RecurrentSizes sizes = recurrent_sizes(layer.config);
  sizes.batch = rows_of(layer, x, sizes.steps * sizes.inputs);
  return sizes;
}

void prepare(const RecurrentSizes& s, std::size_t gates, DeviceState& state, DeviceRun& run) {
  state.scratch.resize(kScratchCount);
  state.post.resize(*run.device, Shape{s.batch, s.steps, s.hidden});
  state.scratch[kSums].resize(*run.device, Shape{gates, s.batch, s.steps, s.hidden});
  state.scratch[kProducts].resize(*run.device, Shape{gates, s.batch, s.hidden});
  for (const Scratch part : {kH, kC}) state.scratch[part].resize(*run.device, Shape{s.batch, s.hidden});
}

void rnn_forward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, DeviceState& state, LayerState&,
                 DeviceRun& run) {
  const RecurrentSizes s = sizes_of(layer, x.shape());
  const Gate gate = gate_at(s, 0);
  prepare(s, 1, state, run);
  float* const h = state.scratch[kH].data();
  linear_forward(layer, gate.input, x.data(), s.rows(), state.scratch[kSums].data(), run);
  for (std::size_t t = 0; t < s.steps; ++t) {
    if (t > 0) linear_forward(layer, gate.recurrent, h, s.batch, state.scratch[kProducts].data(), run);
    rnn_step({s.batch, s.steps, s.hidden, t}, state.scratch[kSums].data(),
             t > 0 ? state.scratch[kProducts].data() : nullptr, h, state.post.data(), run.stream);
  }
}

void lstm_forward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, DeviceState& state, LayerState&,
                  DeviceRun& run) {
  const RecurrentSizes s = sizes_of(layer, x.shape());
  prepare(s, kGates, state, run);
  float* const h = state.scratch[kH].data();
  float* const sums = state.scratch[kSums].data();
  float* const products = state.scratch[kProducts].data();
  const auto gate = [&](std::size_t number) { return gate_at(s, number * gate_weights(s)); };
  for (std::size_t i = 0; i < kGates; ++i) {
    linear_forward(layer, gate(i).input, x.data(), s.rows(), sums + i * s.rows() * s.hidden, run);
  }
  for (std::size_t t = 0; t < s.steps; ++t) {
    for (std::size_t i = 0; i < kGates && t > 0; ++i) {
      linear_forward(layer, gate(i).recurrent, h, s.batch, products + i * s.step_values(), run);
    }
    lstm_step({s.batch, s.steps, s.hidden, t}, sums, t > 0 ? products : nullptr, state.scratch[kC].data(), h,
              state.post.data(), run.stream);
  }
}

}  // namespace

const DeviceFunctions kRnn{rnn_forward, nullptr};
const DeviceFunctions kLstm{lstm_forward, nullptr};

}  // namespace imago::layers::cuda
