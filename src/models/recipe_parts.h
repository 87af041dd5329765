#pragma once

// Shared by the recipes for GGUF and for Hugging Face.

#include <span>
#include <string>
#include <vector>

#include "models/decoder_tensors.h"
#include "models/recipe.h"
#include "models/tensor_layout.h"

namespace imago::models {

/// The tensors of a decoder with the names and row order of `target`, without rope factors. Throws UnsupportedError for
/// a layout that cannot be converted.
std::vector<TensorRecipe> decoder_recipes(const Traits& traits, const DecoderTensors& tensors, const Naming& target);

/// What a tensor of a layout is for.
TensorUse use_of(const Traits& traits, const LayoutTensor& tensor) noexcept;
/// Runners of GGUF expect it in float32, whatever type matrices have.
bool is_wide_in_gguf(const Traits& traits, const LayoutTensor& tensor) noexcept;

/// A recipe that keeps name and shape.
TensorRecipe kept_tensor(const files::StoredTensor& tensor);

/// The dtype of most weights if it is float32, float16 or bfloat16; else none.
std::optional<DType> main_type(const files::TensorFile& file);

/// The recipe from a folder to GGUF.
ModelRecipe gguf_recipe(const files::TensorFile& file);
/// The recipe from a GGUF file to a folder. Without the tokenizer: weights and config.json only.
ModelRecipe folder_recipe(const files::TensorFile& file, bool with_tokenizer = true);

/// `ARCHITECTURE.*` of a GGUF file. `dense`: the width that a config.json states for blocks without experts, if only
/// by convention.
std::vector<GgufMetadata> traits_metadata(const Traits& traits, std::size_t dense);
/// All that a GGUF file says about a model besides its tokenizer.
std::vector<GgufMetadata> gguf_settings(const Traits& traits, const files::JsonFile& config, std::string title);
/// The values of rope_freqs.weight; empty: the file has no such tensor.
std::vector<float> gguf_rope_factors(const Traits& traits);
/// What GGUF or its runners cannot express about this model, one sentence each. Throws UnsupportedError if the result
/// would be another model.
std::vector<std::string> gguf_losses(const Traits& traits, const std::string& path);

/// What config.json contains besides the traits.
struct ConfigExtras {
  DType dtype = DType::float32;
  bool attention_bias = false;
  std::size_t dense_feed_forward = 0;  ///< stated for blocks without experts, whether there are any or not
  std::optional<std::int32_t> bos = {}, eos = {}, padding = {};
};
/// The text of config.json, with the keys of transformers 5 and, where they differ, also those of 4.
std::string config_text(const Traits& traits, const ConfigExtras& extras);

}  // namespace imago::models
