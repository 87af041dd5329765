#pragma once

// The tensors of a model under names that do not depend on the form it comes in.

#include <cstdint>
#include <string>
#include <vector>

#include "files/tensor_file.h"
#include "models/recipe.h"

namespace imago::precision {

/// How tensors are named.
enum class Names : std::uint8_t {
  canonical,  ///< decoders as in GGUF, rows in the order of GGUF (models/matrix_names.h); others as stored
  stored,
};

/// In the order of the model; valid as long as the file. Tensors that a decoder has no use for come last.
std::vector<models::TensorRecipe> model_tensors(const files::TensorFile& file, Names names);

/// As GGUF spells it, so that it is the same in both forms; empty for a bag of tensors and for what imago does not
/// know.
std::string architecture_of(const files::TensorFile& file);

/// Bytes in the file that a tensor is made of, scales included.
std::uint64_t stored_bytes(const models::TensorRecipe& tensor);

}  // namespace imago::precision
