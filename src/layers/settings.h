#pragma once

// What the files of the layer types share: reading settings, filling fresh weights.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "imago/layer.h"

namespace imago::layers {

/// The setting as a size. Throws UsageError, naming the type and the field, if it is not positive.
std::size_t required(const LayerConfig& config, int value, std::string_view field);

/// As WeightShape, for layers that own no weights.
WeightShape no_weights(const LayerConfig& config);

/// `count` weights from `first` on become uniform in [-0.1, 0.1], the rule for matrices of fresh layers. Parts of one
/// array may use one seed: `first` is mixed into it.
void initialize_uniform(WeightStore& weights, std::uint64_t seed, std::size_t first, std::size_t count);
/// … become `value`. Fresh stores hold zeros already.
void initialize_constant(WeightStore& weights, std::size_t first, std::size_t count, float value);

/// Throws UsageError, saying who asks for what, if so many float32 values are more than this machine has memory for:
/// settings come from files, and a small file must not take all memory there is.
void check_memory(std::size_t values, std::string_view who, std::string_view what);

}  // namespace imago::layers
