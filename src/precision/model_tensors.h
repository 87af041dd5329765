#pragma once

// The tensors of a model under names that do not depend on its file format.

#include <string>
#include <vector>

#include "files/tensor_file.h"
#include "models/recipe.h"

namespace imago::precision {

/// The tensors of a file under their own names. In the order of the model; valid as long as the file.
std::vector<models::TensorRecipe> stored_tensors(const files::TensorFile& file);
/// The same; a decoder's have names and row order of GGUF (models/tensor_layout.h), and those that it does not use come
/// last.
std::vector<models::TensorRecipe> canonical_tensors(const files::TensorFile& file);

/// The architecture by its name in GGUF, whatever the file format; empty for bags of tensors and unknown models.
std::string architecture_of(const files::TensorFile& file);

}  // namespace imago::precision
