#pragma once

// The tensors of a model under names that do not depend on its file format.

#include <cstdint>
#include <string>
#include <vector>

#include "files/tensor_file.h"
#include "models/recipe.h"

namespace imago::precision {

/// How tensors are named.
enum class Names : std::uint8_t {
  canonical,  ///< decoders: names and row order of GGUF (models/tensor_layout.h); others as stored
  stored,
};

/// In the order of the model; valid as long as the file. Tensors that a decoder does not use come last.
std::vector<models::TensorRecipe> model_tensors(const files::TensorFile& file, Names names);

/// The architecture by its name in GGUF, whatever the file format; empty for bags of tensors and unknown models.
std::string architecture_of(const files::TensorFile& file);

}  // namespace imago::precision
