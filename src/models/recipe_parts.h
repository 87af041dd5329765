#pragma once

// What the recipes of both directions share.

#include <span>
#include <string>
#include <vector>

#include "models/decoder_tensors.h"
#include "models/recipe.h"
#include "models/tensor_layout.h"

namespace imago::models {

/// What a tensor of these roles is for.
TensorUse use_of(std::span<const Role> roles) noexcept;

/// The tensors of a decoder under the names and in the order of rows of `target`. Rope factors are not among them.
/// Throws UnsupportedError for a layout that cannot be brought over.
std::vector<TensorRecipe> decoder_recipes(const Traits& traits, const DecoderTensors& tensors, const Naming& target);

/// One that keeps name and shape.
TensorRecipe kept_tensor(const files::StoredTensor& tensor);

/// The dtype that most weights have if it is float32, float16 or bfloat16; else none.
std::optional<DType> main_type(const files::TensorFile& file);

/// A folder as GGUF, a GGUF file as folder.
ModelRecipe gguf_recipe(const files::TensorFile& file);
ModelRecipe folder_recipe(const files::TensorFile& file);
/// The same without the files of the tokenizer: weights and config.json.
ModelRecipe folder_weights_recipe(const files::TensorFile& file);

/// `ARCHITECTURE.*` of a GGUF file. `dense_feed_forward`: what qwen3_moe states for blocks without experts.
std::vector<GgufMetadata> traits_metadata(const Traits& traits, std::size_t dense_feed_forward);
/// What GGUF or its runners cannot say of this model, a sentence each. Throws UnsupportedError where that makes it
/// another model.
std::vector<std::string> gguf_losses(const Traits& traits, const std::string& path);

/// What config.json says beside the traits.
struct ConfigExtras {
  DType dtype = DType::float32;
  bool attention_bias = false;
  std::size_t dense_feed_forward = 0;  ///< of qwen3_moe
  std::optional<std::int32_t> bos = {}, eos = {}, padding = {};
};
/// A config.json, in the spellings of transformers 5 and, where those of 4 are others, in both.
std::string config_text(const Traits& traits, const ConfigExtras& extras);

/// The divisors of rotary frequencies that llama3 scaling amounts to, one per pair: what GGUF stores.
std::vector<float> llama3_factors(const Traits& traits, const RopeScaling& scaling);
/// The scaling that gives these divisors; none if none is found. Looks for the factors 1 and 4 that all models have,
/// any context that is a power of two, and any factor.
std::optional<RopeScaling> llama3_scaling(const Traits& traits, std::span<const float> factors);

}  // namespace imago::models
