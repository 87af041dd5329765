// Converts a GGUF file to a Hugging Face folder that transformers loads.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/names.h"
#include "files/json_writer.h"
#include "files/safetensors.h"
#include "imago/error.h"
#include "models/architectures.h"
#include "models/fields.h"
#include "models/json_object.h"
#include "models/recipe_parts.h"
#include "models/rope.h"
#include "models/tensor_names.h"
#include "models/traits_reading.h"

namespace imago::models {

namespace {

/// Takes the weights of a dense module out of those of the model and makes a file of them, in float32. Returns whether
/// there is a bias.
bool add_dense_weights(ModelRecipe& recipe, const std::string& path) {
  const auto is_of = [&](const TensorRecipe& tensor) { return tensor.name.starts_with(path + "."); };
  std::vector<SafetensorsEntry> entries;
  std::string data;
  for (const TensorRecipe& tensor : recipe.tensors) {
    if (!is_of(tensor)) continue;
    std::vector<float> values(tensor.shape.elements());
    files::decode_tensor(*tensor.parts.front().tensor, 0, values);
    entries.push_back({tensor.name.substr(path.size() + 1), SafetensorsType::f32, tensor.shape});
    const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
    data.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::erase_if(recipe.tensors, is_of);
  recipe.side_files.push_back({path + "/model.safetensors", files::safetensors_header(entries) + data});
  return std::ranges::any_of(entries, [](const SafetensorsEntry& entry) { return entry.shape.rank() == 1; });
}

/// The files by which sentence-transformers knows how to pool, and the dense layers that follow.
void add_pooling(const Traits& traits, ModelRecipe& recipe) {
  if (traits.pooling == Pooling::unknown || traits.head.scores) return;
  JsonObject pooling;
  pooling.size("word_embedding_dimension", traits.width);
  pooling.flag("pooling_mode_cls_token", traits.pooling == Pooling::cls);
  pooling.flag("pooling_mode_lasttoken", traits.pooling == Pooling::last);
  pooling.flag("pooling_mode_mean_tokens", traits.pooling == Pooling::mean);
  recipe.side_files.push_back({"1_Pooling/config.json", pooling.json(files::JsonStyle::indented) + "\n"});
  std::string modules = R"([{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
 {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"})";
  std::size_t inputs = traits.width, index = 2;
  for (const Role role : {Role::head_dense, Role::head_output}) {
    const std::size_t outputs = role == Role::head_dense ? traits.head.hidden : traits.head.results;
    if (outputs == 0) continue;
    const std::string name = tensor_name(traits, false, role), path = name.substr(0, name.find('.'));
    JsonObject dense;
    dense.size("in_features", inputs);
    dense.size("out_features", outputs);
    dense.text("activation_function", "torch.nn.modules.linear.Identity");  // GGUF has no others
    dense.flag("bias", add_dense_weights(recipe, path));
    recipe.side_files.push_back({path + "/config.json", dense.json(files::JsonStyle::indented) + "\n"});
    modules += fmt::format(R"(,
 {{"idx": {0}, "name": "{0}", "path": "{1}", "type": "sentence_transformers.models.Dense"}})",
                           index++, path);
    inputs = outputs;
  }
  recipe.side_files.push_back({std::string(files::kModulesName), modules + "]\n"});
}

/// The scaling that gives the stored factors: as stated by imago, or inferred.
RopeScaling find_scaling(const GgufFile& file, const Traits& traits, const WeightSlice& slice) {
  std::vector<float> factors(slice.rows * slice.cols);
  decode_slice(slice, factors);
  if (std::all_of(factors.begin(), factors.end(), [](float factor) { return factor == 1; })) return {};
  const GgufFields stated(file, kLlama3Prefix);
  if (stated.has("factor")) {
    RopeScaling scaling{.kind = RopeScaling::Kind::llama3};
    for (const Llama3Field& field : kLlama3Fields) scaling.*field.value = stated.positive(field.key, field.high);
    return scaling;
  }
  std::optional<RopeScaling> found = proportional_scaling(factors);
  if (!found) found = llama3_scaling(main_rope(traits), factors);
  if (!found) {
    throw UnsupportedError(
        fmt::format("{}: 'rope_freqs.weight' holds factors that are not those of llama3 scaling, and "
                    "config.json has no key for others",
                    file.path()));
  }
  return *found;
}

/// Drops tokens that only pad the vocabulary to the rows of the embedding.
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

/// Returns the dtype of the folder; tensors that GGUF keeps in float32 take it if that loses nothing.
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

}  // namespace

ModelRecipe folder_recipe(const files::TensorFile& file, bool with_tokenizer) {
  const GgufFile& gguf = *file.gguf();
  Traits traits = read_traits(file);
  const DecoderTensors tensors(file, traits);
  ModelRecipe recipe;
  recipe.target = FileForm::huggingface;
  recipe.tensors = decoder_recipes(traits, tensors, usual_naming(traits, false));
  recipe.safetensors_metadata = {{"format", "pt"}};
  if (std::string note = encoder_note(tensors); !note.empty()) recipe.notes.push_back(std::move(note));
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
  if (facts(traits.architecture).one_branch) {
    const std::size_t dense = dense_feed_forward(traits);
    extras.dense_feed_forward = dense != 0 ? dense : expert_feed_forward(traits);
  } else if (attends(traits)) {  // others have no such layers and state 0
    extras.dense_feed_forward = fields.size("feed_forward_length", kMaxFeedForward, traits.block.front().feed_forward);
  }
  if (with_tokenizer) add_tokenizer(gguf, recipe, extras);
  recipe.side_files.push_back({"config.json", config_text(traits, extras)});
  add_pooling(traits, recipe);
  return recipe;
}

}  // namespace imago::models
