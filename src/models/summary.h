#pragma once

// What a language model needs to run, as far as its file tells without reading weights.

#include <cstddef>
#include <cstdint>
#include <string>

#include "files/tensor_file.h"

namespace imago::models {

struct Summary {
  std::string architecture;
  bool generates = true;
  std::size_t blocks = 0, width = 0, vocabulary = 0, context = 0;
  std::size_t experts = 0, experts_used = 0;  ///< 0: none
  std::uint64_t active_parameters = 0;        ///< weights that one token is multiplied with
  std::uint64_t step_bytes = 0;               ///< size of those matrices as they are stored
  std::uint64_t cache_bytes = 0;              ///< keys and values in float16, for each token of a text
};

/// Throws as read_traits and DecoderTensors.
Summary summarize(const files::TensorFile& file);

/// What is known about a model that imago does not run, and how it differs from the nearest one that it does: sentences
/// for the error. `type`: as the file calls its architecture.
std::string describe_unknown(const files::TensorFile& file, std::string_view type);

}  // namespace imago::models
