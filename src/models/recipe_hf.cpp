// A GGUF file as a Hugging Face folder that transformers loads.

#include <fmt/format.h>

#include <algorithm>

#include "files/json_writer.h"
#include "imago/error.h"
#include "models/gguf_fields.h"
#include "models/recipe_parts.h"
#include "models/traits_reading.h"

namespace imago::models {

namespace {

/// The rule behind the factors that a file stores: as imago stated it, or found again.
RopeScaling find_scaling(const GgufFile& file, const Traits& traits, const WeightSlice& slice) {
  std::vector<float> factors(slice.rows * slice.cols);
  decode_slice(slice, factors);
  if (std::all_of(factors.begin(), factors.end(), [](float factor) { return factor == 1; })) return {};
  const std::string prefix(kLlama3Prefix.substr(0, kLlama3Prefix.size() - 1));
  const GgufFields stated(file, prefix);
  if (stated.has("factor")) {
    return {.kind = RopeScaling::Kind::llama3,
            .factor = stated.positive("factor", kMaxFactor),
            .original_context = stated.positive("original_context", static_cast<double>(kMaxContext)),
            .low_freq_factor = stated.positive("low_freq_factor", kMaxFactor),
            .high_freq_factor = stated.positive("high_freq_factor", kMaxFactor)};
  }
  const std::optional<RopeScaling> found = llama3_scaling(traits, factors);
  if (!found) {
    throw UnsupportedError(
        fmt::format("{}: 'rope_freqs.weight' holds factors that are not those of llama3 scaling, which "
                    "config.json has no words for",
                    file.path()));
  }
  return *found;
}

/// Drops tokens that stand for rows nobody uses.
void strip_padding(Vocabulary& vocabulary) {
  std::vector<Token>& tokens = vocabulary.tokens;
  while (!tokens.empty() && tokens.back().type == TokenType::unused &&
         tokens.back().text == fmt::format("[PAD{}]", tokens.size() - 1)) {
    tokens.pop_back();
  }
}

std::string generation_config(const Vocabulary& vocabulary) {
  files::StringSink sink;
  files::JsonWriter json(sink, files::JsonStyle::indented);
  json.begin_object();
  const auto id = [&](std::string_view key, const std::optional<std::int32_t>& value) {
    if (!value) return;
    json.key(key);
    json.value(std::int64_t{*value});
  };
  id("bos_token_id", vocabulary.bos);
  if (vocabulary.ends.size() > 1) {
    json.key("eos_token_id");
    json.begin_array();
    for (const std::int32_t end : vocabulary.ends) json.value(std::int64_t{end});
    json.end_array();
  } else {
    id("eos_token_id", vocabulary.eos);
  }
  id("pad_token_id", vocabulary.padding);
  json.end_object();
  return sink.text() + "\n";
}

/// The folder's dtype; and what GGUF keeps in float32 for its runners takes it too, where that loses nothing.
DType restore_types(const files::TensorFile& file, ModelRecipe& recipe) {
  const std::optional<DType> type = main_type(file);
  if (!type || *type == DType::float32) return DType::float32;
  for (TensorRecipe& tensor : recipe.tensors) {
    if (tensor.parts[0].tensor->format != Format(DType::float32)) continue;
    tensor.preferred = *type;
    tensor.preferred_if_exact = true;
  }
  return *type;
}

void add_tokenizer(const GgufFile& gguf, ModelRecipe& recipe, ConfigExtras& extras) {
  const GgufValue* tokenizer = gguf.find("tokenizer.ggml.model");
  if (tokenizer == nullptr || tokenizer->string() == kNoTokenizer) {
    recipe.notes.push_back("the GGUF file has no tokenizer, so the folder has none");
    return;
  }
  Vocabulary vocabulary = read_vocabulary(gguf);
  strip_padding(vocabulary);
  extras.bos = vocabulary.bos;
  extras.eos = vocabulary.eos;
  extras.padding = vocabulary.padding;
  TokenizerFiles files = hugging_face_vocabulary(vocabulary);
  recipe.side_files.push_back({"tokenizer.json", std::move(files.tokenizer)});
  recipe.side_files.push_back({"tokenizer_config.json", std::move(files.tokenizer_config)});
  recipe.side_files.push_back({"generation_config.json", generation_config(vocabulary)});
}

ModelRecipe make_folder(const files::TensorFile& file, bool with_tokenizer) {
  const GgufFile& gguf = *file.gguf();
  Traits traits = read_traits(file);
  const DecoderTensors tensors(file, traits);
  ModelRecipe recipe;
  recipe.target = FileForm::huggingface;
  recipe.tensors = decoder_recipes(traits, tensors, usual_naming(traits, false));
  recipe.safetensors_metadata = {{"format", "pt"}};
  for (const std::string& unused : tensors.unused()) {
    recipe.notes.push_back(
        fmt::format("tensor '{}' is left out: a {} has no use for it", unused, name(traits.architecture)));
  }
  if (const std::optional<WeightSlice> factors = tensors.find(Role::rope_factors)) {
    traits.rope_scaling = find_scaling(gguf, traits, *factors);
  }

  ConfigExtras extras;
  extras.dtype = restore_types(file, recipe);
  extras.attention_bias = tensors.find(Role::query_bias).has_value();
  const GgufFields fields(gguf, gguf.architecture());
  extras.dense_feed_forward = fields.size("feed_forward_length", kMaxFeedForward, traits.feed_forward);
  if (with_tokenizer) add_tokenizer(gguf, recipe, extras);
  recipe.side_files.push_back({"config.json", config_text(traits, extras)});
  return recipe;
}

}  // namespace

ModelRecipe folder_recipe(const files::TensorFile& file) { return make_folder(file, true); }
ModelRecipe folder_weights_recipe(const files::TensorFile& file) { return make_folder(file, false); }

}  // namespace imago::models
