#pragma once

// Blocks that are not attention, or not attention alone: their sizes in config.json and in the metadata of GGUF files,
// and the names of their tensors.

#include <cstddef>
#include <string>
#include <vector>

#include "models/fields.h"
#include "models/traits.h"

namespace imago::models {

/// The types of the blocks of nemotron_h, of which there are as many as types. Sets blocks and their mixers.
void read_config_branches(const ConfigFields& config, Traits& traits);

/// Which mixer each block has, and the sizes of all. REQUIRES: sizes of attention and feed-forward layers are set.
void read_config_mixers(const ConfigFields& config, Traits& traits);
void read_gguf_mixers(const GgufFields& fields, Traits& traits);

/// The name of a weight of a mixer inside a block, of the first of its roles where several are one tensor.
std::string mixer_name(const Traits& traits, bool gguf, backend::Role role);

/// A vector as steps read it: columns of files are rows, rates are rates and not their logarithms, taps are in the
/// order of the channels, and norms of what routers read scale it too.
std::vector<float> mixer_vector(const Traits& traits, backend::Role role, std::vector<float> values, std::size_t cols);

}  // namespace imago::models
