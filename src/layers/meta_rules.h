#pragma once

// The rules of Metacognition layers: what they look at and what they do (spec/layers.md §4.19).

#include <deque>

#include "layers/layer_functions.h"

namespace imago::layers {

TensorStats stats_of(const Tensor<float>& tensor);

/// Keeps the latest 100 in the history of the grid; nothing without one.
void remember_input(const TensorStats& stats, Run& run);

/// What the conditions of a rule look at. `history` may be null: the layer stands alone.
struct Observation {
  TensorStats input, output;
  const std::deque<TensorStats>* history = nullptr;
};

/// Unknown conditions never hold.
bool condition_holds(const MetaRule& rule, const Observation& seen);

/// The tensors that the target had last, where they are known: they give the sizes that its settings leave out.
struct Measured {
  const Tensor<float>* input = nullptr;
  const Tensor<float>* output = nullptr;
};

/// Executes a command on `target` or, where that is a Metacognition layer, on what it observes. True if the layer is
/// another one afterwards: a type that matches already, a container, a layer whose width is known neither from its
/// settings nor from `measured`, and a command that is not known change nothing. What is left is a valid layer: sizes
/// set, weights there, old weights as a prefix of the new ones (a layer that becomes a norm starts with gammas of 1).
/// Throws UsageError for a type (command 99) that does not exist and for sizes that make no layer.
bool execute_command(Layer& target, int command, float param, const Measured& measured, Run& run);

/// The layer at (0, 0, column, 0), the target of commands that are not about the observed layer. Throws UsageError if
/// there is no such layer.
Layer& command_target(const Layer& layer, float column, Run& run);

/// Truncates toward zero; 0 for NaN, the nearest bound for what no int holds.
int int_of(float value) noexcept;

}  // namespace imago::layers
