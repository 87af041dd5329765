// A Hugging Face folder as a GGUF file that llama.cpp loads.

#include <fmt/format.h>

#include <filesystem>

#include "imago/error.h"
#include "models/architectures.h"
#include "models/recipe_parts.h"
#include "models/traits_reading.h"

namespace imago::models {

namespace {

/// llama.cpp wants as many tokens as the embedding has rows; models often have more rows, for later use.
void pad(Vocabulary& vocabulary, const Traits& traits, const std::string& path) {
  if (vocabulary.tokens.size() > traits.vocabulary) {
    throw FormatError(
        path, 0,
        fmt::format("the tokenizer has {} tokens, but vocab_size is {}", vocabulary.tokens.size(), traits.vocabulary));
  }
  while (vocabulary.tokens.size() < traits.vocabulary) {
    Token token;
    token.text = fmt::format("[PAD{}]", vocabulary.tokens.size());
    token.type = TokenType::unused;
    vocabulary.tokens.push_back(std::move(token));
  }
}

void add_rope_factors(const Traits& traits, ModelRecipe& recipe) {
  if (traits.rope_scaling.kind != RopeScaling::Kind::llama3) return;
  auto made = std::make_shared<MadeTensor>();
  made->values = llama3_factors(traits, traits.rope_scaling);
  made->tensor.name = "rope_freqs.weight";
  made->tensor.type = "F32";
  made->tensor.format = DType::float32;
  made->tensor.gguf_type = gguf_tensor_type(DType::float32);
  made->tensor.shape = Shape{made->values.size()};
  made->tensor.bytes = std::as_bytes(std::span(made->values));
  made->tensor.file = "rope_parameters";
  TensorRecipe factors = kept_tensor(made->tensor);
  factors.blocks = traits.blocks;
  factors.preferred = DType::float32;
  recipe.tensors.push_back(std::move(factors));
  recipe.made.push_back(std::move(made));
}

void add_llama3_metadata(const RopeScaling& scaling, std::vector<GgufMetadata>& metadata) {
  if (scaling.kind != RopeScaling::Kind::llama3) return;
  const auto add = [&](const char* key, double value) {
    metadata.push_back({std::string(kLlama3Prefix) + key, static_cast<float>(value)});
  };
  add("factor", scaling.factor);
  add("original_context", scaling.original_context);
  add("low_freq_factor", scaling.low_freq_factor);
  add("high_freq_factor", scaling.high_freq_factor);
}

}  // namespace

ModelRecipe gguf_recipe(const files::TensorFile& file) {
  const files::HuggingFaceFolder& folder = *file.folder();
  const Traits traits = read_traits(file);
  const DecoderTensors tensors(file, traits);
  ModelRecipe recipe;
  recipe.target = FileForm::gguf;
  recipe.notes = gguf_losses(traits, file.path());
  recipe.tensors = decoder_recipes(traits, tensors, usual_naming(traits, true));
  add_rope_factors(traits, recipe);
  for (const std::string& unused : tensors.unused()) {
    recipe.notes.push_back(
        fmt::format("tensor '{}' is left out: a {} has no use for it", unused, name(traits.architecture)));
  }

  const std::filesystem::path path = std::filesystem::absolute(folder.path()).lexically_normal();
  const std::string title = (path.has_filename() ? path : path.parent_path()).filename().string();
  recipe.gguf_metadata = {{"general.architecture", std::string(facts(traits.architecture).gguf)},
                          {"general.type", "model"},
                          {"general.name", title}};
  const auto dense = folder.config().root().find("intermediate_size");
  const std::size_t dense_size =
      dense ? static_cast<std::size_t>(dense->integral("intermediate_size", 1, kMaxFeedForward)) : traits.feed_forward;
  for (GgufMetadata& entry : traits_metadata(traits, dense_size)) recipe.gguf_metadata.push_back(std::move(entry));
  if (traits.architecture == Architecture::mistral) {
    recipe.gguf_metadata.push_back({std::string(kModelTypeKey), std::string(name(traits.architecture))});
  }
  add_llama3_metadata(traits.rope_scaling, recipe.gguf_metadata);

  if (folder.tokenizer()) {
    Vocabulary vocabulary = read_vocabulary(folder);
    pad(vocabulary, traits, folder.tokenizer()->path());
    for (GgufMetadata& entry : gguf_vocabulary(vocabulary)) recipe.gguf_metadata.push_back(std::move(entry));
  } else {
    recipe.gguf_metadata.push_back({"tokenizer.ggml.model", std::string(kNoTokenizer)});
    recipe.notes.push_back("the folder has no tokenizer.json, so the GGUF file has no tokenizer");
  }
  return recipe;
}

}  // namespace imago::models
