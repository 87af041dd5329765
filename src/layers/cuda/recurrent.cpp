// RNN and LSTM, forward. The products with x are one for all steps; only those with h depend on the step before.
// scratch: the sums of all steps, the products of one, h and c.

#include "layers/cuda/kernels.h"
#include "layers/cuda/run.h"
#include "layers/settings.h"

namespace imago::layers::cuda {

namespace {

enum Scratch : std::size_t { kSums, kProducts, kH, kC, kScratchCount };

void prepare(const RecurrentSizes& s, std::size_t gates, DeviceState& state, DeviceRun& run) {
  state.scratch.resize(kScratchCount);
  state.post.resize(*run.device, Shape{s.batch, s.steps, s.hidden});
  state.scratch[kSums].resize(*run.device, Shape{gates, s.batch, s.steps, s.hidden});
  state.scratch[kProducts].resize(*run.device, Shape{gates, s.batch, s.hidden});
  for (const Scratch part : {kH, kC}) state.scratch[part].resize(*run.device, Shape{s.batch, s.hidden});
}

void rnn_forward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, DeviceState& state, LayerState&,
                 DeviceRun& run) {
  const RecurrentSizes s = recurrent_sizes(layer, x.shape());
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
  const RecurrentSizes s = recurrent_sizes(layer, x.shape());
  prepare(s, kLstmGates, state, run);
  float* const h = state.scratch[kH].data();
  float* const sums = state.scratch[kSums].data();
  float* const products = state.scratch[kProducts].data();
  for (std::size_t i = 0; i < kLstmGates; ++i) {
    linear_forward(layer, gate_at(s, i).input, x.data(), s.rows(), sums + i * s.rows() * s.hidden, run);
  }
  for (std::size_t t = 0; t < s.steps; ++t) {
    for (std::size_t i = 0; i < kLstmGates && t > 0; ++i) {
      linear_forward(layer, gate_at(s, i).recurrent, h, s.batch, products + i * s.step_values(), run);
    }
    lstm_step({s.batch, s.steps, s.hidden, t}, sums, t > 0 ? products : nullptr, state.scratch[kC].data(), h,
              state.post.data(), run.stream);
  }
}

}  // namespace

const DeviceFunctions kRnn{rnn_forward, nullptr};
const DeviceFunctions kLstm{lstm_forward, nullptr};

}  // namespace imago::layers::cuda
