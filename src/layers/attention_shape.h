#pragma once

// What the settings of MultiHeadAttention mean (spec/layers.md §4.1): sizes, where its matrices lie, how an input
// divides into sequences.

#include <cstddef>

#include "layers/linear.h"

namespace imago::layers {

struct AttentionDims {
  std::size_t width, heads, kv_heads, head_values;
  std::size_t queries, keys;  ///< Q and K of the spec: all heads side by side
  double rope_base, eps;

  std::size_t projected() const noexcept { return queries + 2 * keys; }
  std::size_t group() const noexcept { return heads / kv_heads; }
};

/// Effective values. Throws UsageError, naming the field, for settings that make no valid layer.
AttentionDims attention_dims(const LayerConfig& config);

/// All weights. Throws ShapeError on overflow.
std::size_t attention_weights(const AttentionDims& dims);

/// The arrays of q, k and v follow each other, matrices and biases alike: they are one projection to q, then k, then v.
Linear attention_projection(const AttentionDims& dims);
Linear attention_output(const AttentionDims& dims);

struct AttentionBatch {
  std::size_t sequences, steps;
  std::size_t tokens() const noexcept { return sequences * steps; }
};

/// Throws ShapeError, naming the layer, for an input that is no whole number of sequences.
AttentionBatch attention_batch(const Layer& layer, const AttentionDims& dims, const Shape& x);

}  // namespace imago::layers
