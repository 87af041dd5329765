#include "checkpoint/import_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "imago/error.h"

namespace imago::checkpoint {

namespace {

using files::JsonValue;

std::optional<JsonValue> find_set(const JsonValue& object, std::string_view key) {
  const std::optional<JsonValue> value = object.find(key);
  return value && !value->is_null() ? value : std::nullopt;
}

std::size_t size_of(const JsonValue& config, std::string_view key, std::optional<std::size_t> otherwise = {}) {
  const std::optional<JsonValue> value = find_set(config, key);
  if (value) return static_cast<std::size_t>(value->integral(key, 1, kMaxImportSize));
  if (!otherwise) config.fail(fmt::format("there is no {}", key));
  return *otherwise;
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
    const std::optional<JsonValue> value = find_set(config, key);
    if (!value || value->number(key) == neutral) continue;
    if (key == "sliding_window") {
      const std::optional<JsonValue> used = find_set(config, "use_sliding_window");
      if (used && !used->boolean("use_sliding_window")) continue;
    }
    cannot(path, fmt::format("{} is {}", key, value->source()));
  }
  if (find_set(config, "no_rope_layers")) cannot(path, "no_rope_layers is set");
  const std::optional<JsonValue> type = find_set(config, "model_type");
  const std::string kind = type ? type->string("model_type") : "";
  for (const std::string_view other : {"gemma", "olmo", "gpt2"}) {
    if (kind.starts_with(other)) cannot(path, fmt::format("model_type is '{}'", kind));
  }
}

bool is_llama_style(const JsonValue& config) {
  std::vector<std::string> names;
  if (const std::optional<JsonValue> list = find_set(config, "architectures")) {
    for (const files::JsonMember& entry : list->elements("architectures")) {
      names.push_back(entry.value.string("architectures"));
    }
  }
  if (const std::optional<JsonValue> type = find_set(config, "model_type")) names.push_back(type->string("model_type"));
  for (std::string& text : names) {
    std::ranges::transform(text, text.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    for (const std::string_view known : {"llama", "mistral", "qwen", "smol", "gemma", "phi"}) {
      if (text.find(known) != std::string::npos) return true;
    }
  }
  return find_set(config, "num_hidden_layers") && find_set(config, "hidden_size") &&
         find_set(config, "num_attention_heads");
}

double rope_base(const JsonValue& config, const std::string& path) {
  const std::optional<JsonValue> parameters = find_set(config, "rope_parameters");
  for (const std::optional<JsonValue>& scaling : {parameters, find_set(config, "rope_scaling")}) {
    if (!scaling) continue;
    for (const std::string_view key : {"rope_type", "type"}) {
      const std::optional<JsonValue> type = find_set(*scaling, key);
      if (type && type->string(key) != "default") {
        cannot(path, fmt::format("the rotary angles are scaled by '{}'", type->string(key)));
      }
    }
  }
  if (parameters) {
    if (const auto theta = find_set(*parameters, "rope_theta")) return positive(*theta, "rope_theta");
  }
  const std::optional<JsonValue> theta = find_set(config, "rope_theta");
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
  if (!find_set(config, "head_dim") && sizes.width % sizes.heads != 0) {
    config.fail(fmt::format("hidden_size {} is no multiple of {} heads", sizes.width, sizes.heads));
  }
  sizes.head_values = size_of(config, "head_dim", sizes.width / sizes.heads);
  if (const auto eps = find_set(config, "rms_norm_eps")) sizes.eps = positive(*eps, "rms_norm_eps");
  sizes.rope_base = rope_base(config, path);
  if (const auto act = find_set(config, "hidden_act")) {
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
