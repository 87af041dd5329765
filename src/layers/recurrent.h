#pragma once

// What RNN and LSTM share: sizes, and the steps of a sequence. Batches of sequences are [B][S][width]; a step of one,
// which the recurrent products take, is [B][H].

#include <algorithm>
#include <cstddef>
#include <span>

#include "base/checked.h"
#include "layers/linear.h"
#include "layers/settings.h"

namespace imago::layers {

struct RecurrentSizes {
  std::size_t inputs, hidden, steps;
  std::size_t batch = 0;
  std::size_t rows() const noexcept { return batch * steps; }
  std::size_t step_values() const noexcept { return batch * hidden; }
};

inline RecurrentSizes recurrent_sizes(const LayerConfig& config) {
  return {.inputs = required(config, config.input_height, "input_height"),
          .hidden = required(config, config.output_height, "output_height"),
          .steps = config.seq_length <= 0 ? 1 : static_cast<std::size_t>(config.seq_length)};
}

/// With the batch that x holds. Throws ShapeError, naming the layer, if it is no whole number of sequences.
inline RecurrentSizes recurrent_sizes(const Layer& layer, const Tensor<float>& x) {
  RecurrentSizes sizes = recurrent_sizes(layer.config);
  sizes.batch = rows_of(layer, x, sizes.steps * sizes.inputs);
  return sizes;
}

/// The parts of one gate, from `first` on: Wih[H][I], Whh[H][H], b[H].
struct Gate {
  Linear input;      ///< with the bias
  Linear recurrent;  ///< without
};

inline std::size_t gate_weights(const RecurrentSizes& s) {
  const std::size_t columns = checked_add(checked_add(s.inputs, s.hidden, "a gate"), std::size_t{1}, "a gate");
  return checked_mul(s.hidden, columns, "a gate");
}

inline Gate gate_at(const RecurrentSizes& s, std::size_t first) {
  const std::size_t recurrent = first + s.hidden * s.inputs;
  return {.input = {.matrix = {.first = first, .rows = s.hidden, .cols = s.inputs},
                    .bias_first = recurrent + s.hidden * s.hidden},
          .recurrent = {.matrix = {.first = recurrent, .rows = s.hidden, .cols = s.hidden}}};
}

/// Fresh weights of a gate: matrices random, the bias stays 0.
inline void initialize_gate(const RecurrentSizes& s, WeightStore& weights, std::uint64_t seed, std::size_t first) {
  initialize_uniform(weights, seed, first, s.hidden * (s.inputs + s.hidden));
}

/// Calls body(position in the step, position in the sequences) for each batch entry of step t; `hidden` values follow
/// each other from both. `width`: of the sequences' rows.
template <class Body>
void for_each_sequence(const RecurrentSizes& s, std::size_t t, std::size_t width, Body&& body) {
  for (std::size_t b = 0; b < s.batch; ++b) body(b * s.hidden, (b * s.steps + t) * width);
}

/// h_{t-1} for every t, [B][S][H], zeros in front.
inline void shift_by_a_step(const RecurrentSizes& s, std::span<const float> h, std::span<float> before) {
  const std::size_t length = s.steps * s.hidden;
  for (std::size_t b = 0; b < s.batch; ++b) {
    std::ranges::fill(before.subspan(b * length, s.hidden), 0.0f);
    std::ranges::copy(h.subspan(b * length, length - s.hidden), before.subspan(b * length + s.hidden).begin());
  }
}

}  // namespace imago::layers
