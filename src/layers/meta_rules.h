#pragma once

// The rules of Metacognition layers: what they look at and what they do. MetaRule in imago/layer.h lists the numbers.

#include <deque>

#include "layers/layer_functions.h"

namespace imago::layers {

template <class T>
TensorStats stats_of(const Tensor<T>& tensor);

/// Appends to the history of the grid, which keeps the latest kMetaHistory. Does nothing without a grid.
void remember_input(const TensorStats& stats, Run& run);

/// What the conditions of a rule look at. `history` is null for a layer that stands alone.
struct Observation {
  TensorStats input, output;
  const std::deque<TensorStats>* history = nullptr;
};

/// Unknown conditions never hold.
bool condition_holds(const MetaRule& rule, const Observation& seen);

/// The shapes of the tensors that the target had last, where they are known: they give the sizes that its settings
/// leave out.
struct Measured {
  const Shape* input = nullptr;
  const Shape* output = nullptr;
};

/// Executes a command on `target` or, if that is a Metacognition layer, on the layer it observes. Returns whether the
/// layer changed: it does not if it has the type already, is a container, if neither its settings nor `measured` tell
/// its width, or if the command is unknown. The changed layer is valid: it has sizes and weights, the old weights being
/// a prefix of the new ones (a layer that becomes a norm starts with gammas of 1). Throws UsageError for a type
/// (command 99) that does not exist and for sizes that make no layer.
bool execute_command(Layer& target, int command, float param, const Measured& measured, Run& run);

/// The layer at (0, 0, column, 0), the target of commands that are not about the observed layer. Throws UsageError if
/// there is no such layer.
Layer& command_target(const Layer& layer, float column, Run& run);

/// Truncates toward zero; 0 for NaN, the nearest int for values out of range.
int int_of(float value) noexcept;

}  // namespace imago::layers
