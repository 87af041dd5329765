#include "precision/model_tensors.h"

#include "imago/error.h"
#include "models/architectures.h"
#include "models/recipe_parts.h"

namespace imago::precision {

std::vector<models::TensorRecipe> stored_tensors(const files::TensorFile& file) {
  std::vector<models::TensorRecipe> tensors;
  for (const files::StoredTensor& tensor : file.tensors()) tensors.push_back(models::kept_tensor(tensor));
  return tensors;
}

std::vector<models::TensorRecipe> canonical_tensors(const files::TensorFile& file) {
  if (file.folder() == nullptr) return stored_tensors(file);
  try {
    const models::Traits traits = models::read_traits(file);
    const models::DecoderTensors tensors(file, traits);
    std::vector<models::TensorRecipe> recipes =
        models::decoder_recipes(traits, tensors, models::usual_naming(traits, true));
    for (const std::string& unused : tensors.unused()) recipes.push_back(models::kept_tensor(file.require(unused)));
    return recipes;
  } catch (const Error&) {
    return stored_tensors(file);  // not a decoder that imago knows: its tensors can be compared all the same
  }
}

std::string architecture_of(const files::TensorFile& file) {
  if (const GgufFile* gguf = file.gguf()) {
    const GgufValue* stated = gguf->find("general.architecture");
    return stated == nullptr ? std::string() : std::string(stated->string().value_or(""));
  }
  if (file.folder() == nullptr) return {};
  try {
    return std::string(models::gguf_name(models::read_traits(file)));
  } catch (const Error&) {
    return {};
  }
}

}  // namespace imago::precision
