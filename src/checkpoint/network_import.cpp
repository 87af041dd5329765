#include "checkpoint/network_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/entity.h"
#include "checkpoint/network_tensors.h"
#include "files/json_writer.h"
#include "imago/error.h"

namespace imago::checkpoint {

namespace {

using files::JsonValue;

std::size_t size_of(const JsonValue& config, std::string_view key, std::optional<std::size_t> otherwise = {}) {
  if (otherwise && !config.find(key)) return *otherwise;
  return static_cast<std::size_t>(config.require(key, "config.json").integral(key, 1, kMaxImportSize));
}

double positive(const JsonValue& value, std::string_view key) {
  const double number = value.number(key);
  if (!(number > 0)) value.fail(fmt::format("{} is {}, not above 0", key, number));
  return number;
}

[[noreturn]] void cannot(const std::string& path, std::string_view what) {
  throw UnsupportedError(
      fmt::format("{}: config.json: {}, which layers of a network cannot compute; 'imago run' "
                  "and 'imago convert' take the model as it is",
                  path, what));
}

/// Fields that change what a decoder computes, and the value with which they change nothing.
void refuse_other_kinds(const JsonValue& config, const std::string& path) {
  constexpr std::pair<std::string_view, double> kNeutral[] = {
      {"attn_logit_softcapping", 0}, {"final_logit_softcapping", 0},
      {"embedding_multiplier", 1},   {"residual_multiplier", 1},
      {"logits_scaling", 1},         {"partial_rotary_factor", 1},
      {"num_local_experts", 0},      {"num_experts", 0},
      {"sliding_window", 0}};
  for (const auto& [key, neutral] : kNeutral) {
    const std::optional<JsonValue> value = config.find(key);
    if (!value || value->number(key) == neutral) continue;
    if (key == "sliding_window") {
      const std::optional<JsonValue> used = config.find("use_sliding_window");
      if (used && !used->boolean("use_sliding_window")) continue;
    }
    cannot(path, fmt::format("{} is {}", key, value->source()));
  }
  if (config.find("no_rope_layers")) cannot(path, "no_rope_layers is set");
  const std::optional<JsonValue> type = config.find("model_type");
  const std::string kind = type ? type->string("model_type") : "";
  for (const std::string_view other : {"gemma", "olmo", "gpt2"}) {
    if (kind.starts_with(other)) cannot(path, fmt::format("model_type is '{}'", kind));
  }
}

bool is_llama_style(const JsonValue& config) {
  std::vector<std::string> names;
  if (const std::optional<JsonValue> list = config.find("architectures")) {
    for (const files::JsonMember& entry : list->elements("architectures")) {
      names.push_back(entry.value.string("architectures"));
    }
  }
  if (const std::optional<JsonValue> type = config.find("model_type")) names.push_back(type->string("model_type"));
  for (std::string& text : names) {
    std::ranges::transform(text, text.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    for (const std::string_view known : {"llama", "mistral", "qwen", "smol", "gemma", "phi"}) {
      if (text.find(known) != std::string::npos) return true;
    }
  }
  return config.find("num_hidden_layers") && config.find("hidden_size") && config.find("num_attention_heads");
}

double rope_base(const JsonValue& config, const std::string& path) {
  const std::optional<JsonValue> parameters = config.find("rope_parameters");
  for (const std::optional<JsonValue>& scaling : {parameters, config.find("rope_scaling")}) {
    if (!scaling) continue;
    for (const std::string_view key : {"rope_type", "type"}) {
      const std::optional<JsonValue> type = scaling->find(key);
      if (type && type->string(key) != "default") {
        cannot(path, fmt::format("the rotary angles are scaled by '{}'", type->string(key)));
      }
    }
  }
  if (parameters) {
    if (const auto theta = parameters->find("rope_theta")) return positive(*theta, "rope_theta");
  }
  const std::optional<JsonValue> theta = config.find("rope_theta");
  return theta ? positive(*theta, "rope_theta") : 10000;
}

}  // namespace

ImportSizes read_import_sizes(const JsonValue& config, const std::string& path) {
  if (!is_llama_style(config)) config.fail("neither architectures nor model_type names a decoder like Llama");
  refuse_other_kinds(config, path);
  ImportSizes sizes;
  sizes.heads = size_of(config, "num_attention_heads");
  sizes.width = size_of(config, "hidden_size");
  sizes.inner = size_of(config, "intermediate_size");
  sizes.kv_heads = size_of(config, "num_key_value_heads", sizes.heads);
  sizes.blocks = size_of(config, "num_hidden_layers", 0);
  if (sizes.heads % sizes.kv_heads != 0) {
    config.fail(fmt::format("{} heads cannot share {} heads of keys", sizes.heads, sizes.kv_heads));
  }
  if (!config.find("head_dim") && sizes.width % sizes.heads != 0) {
    config.fail(fmt::format("hidden_size {} is not a multiple of {} heads", sizes.width, sizes.heads));
  }
  sizes.head_values = size_of(config, "head_dim", sizes.width / sizes.heads);
  if (const auto eps = config.find("rms_norm_eps")) sizes.eps = positive(*eps, "rms_norm_eps");
  sizes.rope_base = rope_base(config, path);
  if (const auto act = config.find("hidden_act")) {
    const std::string text = act->string("hidden_act");
    if (text == "relu2") {
      sizes.activation = Activation::relu2;
    } else if (text != "silu" && text != "swish") {
      cannot(path, fmt::format("hidden_act is '{}'", text));
    }
  }
  return sizes;
}

}  // namespace imago::checkpoint

namespace imago {

namespace checkpoint {

ImportedNetwork import_network(const files::TensorFile& file, const ImportOptions& options) {
  if (holds_network(file)) return {.network = read_tensors(file, Fp4Table::ocp)};
  // A GGUF file without an architecture is a bag of tensors.
  const bool decoder =
      file.folder() != nullptr || (file.gguf() != nullptr && file.gguf()->find("general.architecture") != nullptr);
  if (decoder && (options.heads != 1 || !options.hints.empty())) {
    throw UsageError(
        fmt::format("{}: the model says itself what its tensors are; leave out heads and hints", file.path()));
  }
  if (decoder) return import_decoder(file, options);
  if (file.form() == FileForm::safetensors || file.gguf() != nullptr) return import_guessed(file, options);
  throw UnsupportedError(
      fmt::format("{}: layers are made of Hugging Face folders, GGUF and safetensors files, not of {}", file.path(),
                  name(file.form())));
}

std::string transformer_json(const ImportedNetwork& imported) {
  const std::span<const Layer> layers = imported.network.layers();
  const LayerConfig attention = layers[1].config, feed_forward = layers[3].config;
  files::StringSink sink;
  files::JsonWriter json(sink, files::JsonStyle::compact);
  json.begin_object();
  json.member("architecture", "llama_style_decoder");
  json.member("hidden_size", attention.d_model);
  json.member("vocab_size", imported.embeddings.shape()[0]);
  json.member("lm_head_tied", imported.head.size() == 0);
  json.member("has_final_norm", imported.final_norm.size() != 0);
  json.member("weight_dtype", name(dtype_beside(attention.dtype)));
  json.key("dims");
  json.begin_object();
  json.member("num_layers", layers.size() / 4);
  json.member("num_heads", attention.num_heads);
  json.member("num_kv_heads", attention.num_kv_heads);
  json.member("head_dim", attention.head_dim);
  json.member("query_dim", attention.query_dim);
  json.member("kv_dim", attention.num_kv_heads * attention.head_dim);
  json.member("intermediate_size", feed_forward.output_height);
  json.member("rms_norm_eps", attention.rms_norm_eps);
  json.member("rope_freq_base", attention.rope_freq_base);
  json.member("activation", name(feed_forward.activation));
  json.end_object();
  json.end_object();
  return std::move(sink.text());
}

}  // namespace checkpoint

ImportedNetwork import_network(const std::string& path, const ImportOptions& options) {
  return checkpoint::import_network(files::TensorFile::open(path, options.eager), options);
}

void save_network(const ImportedNetwork& imported, const std::string& path) {
  if (!imported.is_decoder || std::filesystem::path(path).extension() != ".entity") {
    return save_network(imported.network, path);
  }
  std::vector<checkpoint::EntityBlob> blobs;
  const auto add = [&](std::string_view what, const Tensor<float>& values) {
    if (values.size() == 0) return;
    blobs.push_back({fmt::format("transformer.{}", what), std::string(name(DType::float32)), 0, false,
                     std::as_bytes(values.values())});
  };
  add("embeddings", imported.embeddings);
  add("lm_head", imported.head);
  add("final_norm", imported.final_norm);
  checkpoint::save_entity(path, imported.network, checkpoint::transformer_json(imported), blobs);
}

}  // namespace imago
