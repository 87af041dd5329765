#include "checkpoint/network_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/network_tensors.h"
#include "imago/error.h"
#include "models/architectures.h"
#include "models/traits_reading.h"

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
      fmt::format("{}: {}, which layers of a network cannot compute; 'imago run' and 'imago convert' take the model as "
                  "it is",
                  path, what));
}

/// What a model has that layers do not, in the words of config.json where there are some.
std::vector<std::string> beyond_layers(const models::Traits& traits) {
  std::vector<std::string> list;
  const auto add = [&](bool has, std::string what) {
    if (has) list.push_back(std::move(what));
  };
  const auto scaled = [&](float factor, std::string_view what, std::string_view key) {
    add(factor != 1, fmt::format("{} multiplied by {} ({})", what, factor, key));
  };
  add(traits.learned_positions, "learned positions");
  add(traits.norm == models::NormKind::layer, "layer norms");
  add(traits.parallel, "attention and feed-forward layers side by side");
  add(models::facts(traits.architecture).query_norm_turned && traits.query_norm != models::QueryNorm::none,
      "norms of queries and keys after their rotation");
  add(traits.layer_values != 0, "inputs of layers besides the stream (hidden_size_per_layer_input)");
  add(models::facts(traits.architecture).value_norm, "norms of values");
  add(traits.window_rope.has_value(), "two rotations (rope_parameters)");
  add(traits.query_growth != 0, "queries that grow with their positions (llama_4_scaling_beta)");
  add(traits.experts != 0, fmt::format("{} experts (num_experts)", traits.experts));
  add(std::ranges::any_of(
          traits.block,
          [&](const models::BlockTraits& one) { return one.feed_forward != traits.block.front().feed_forward; }),
      "feed-forward layers of several widths");
  add(std::ranges::any_of(traits.block,
                          [](const models::BlockTraits& one) { return one.mixer != models::Mixer::attention; }),
      "blocks without attention");
  add(traits.attention_gate, "attention with a gate");
  add(!traits.gated, "a feed-forward layer without a gate");
  add(traits.activation != kernels::Activation::silu && traits.activation != kernels::Activation::relu2,
      "another activation than silu or relu2 (hidden_act)");
  add(traits.query_norm == models::QueryNorm::row, "norms of whole rows of queries and keys");
  add(traits.rotary != traits.head_values && !traits.learned_positions,
      fmt::format("{} of {} values of a head that rotate (partial_rotary_factor)", traits.rotary, traits.head_values));
  constexpr std::string_view kScalings[] = {"", "linear", "llama3", "yarn", "proportional"};
  add(traits.rope_scaling.kind != models::RopeScaling::Kind::none,
      fmt::format("rotary angles scaled by {} (rope_scaling)",
                  kScalings[static_cast<std::size_t>(traits.rope_scaling.kind)]));
  // A window as long as the context hides nothing.
  const auto windowed = std::ranges::find_if(
      traits.block, [&](const models::BlockTraits& one) { return one.window != 0 && one.window < traits.context; });
  if (windowed != traits.block.end()) {
    list.push_back(fmt::format("windows of {} keys (sliding_window)", windowed->window));
  }
  add(traits.attention_cap != 0, fmt::format("attn_logit_softcapping {}", traits.attention_cap));
  add(traits.logit_cap != 0, fmt::format("final_logit_softcapping {}", traits.logit_cap));
  scaled(traits.embedding_scale, "embeddings", "embedding_multiplier");
  scaled(traits.residual_scale, "branches", "residual_multiplier");
  add(traits.logit_scale != 1, fmt::format("logits divided by {} (logits_scaling)", 1 / traits.logit_scale));
  add(traits.attention_scale != models::usual_attention_scale(traits),
      fmt::format("attention multiplied by {} (attention_multiplier)", traits.attention_scale));
  add(traits.pre_norms && traits.post_norms, "norms before and after attention");
  return list;
}

/// Imports a model that imago knows. Throws UnsupportedError, with all that stands in the way.
ImportSizes sizes_of(const models::Traits& traits, const std::string& path) {
  std::string beyond;
  for (const std::string& what : beyond_layers(traits)) beyond += (beyond.empty() ? "" : ", ") + what;
  if (!beyond.empty()) cannot(path, fmt::format("a model of type {} has {}", name(traits.architecture), beyond));
  return {.id = std::string(name(traits.architecture)),
          .blocks = traits.blocks,
          .width = traits.width,
          .heads = traits.heads,
          .kv_heads = traits.kv_heads,
          .head_values = traits.head_values,
          .inner = traits.block.front().feed_forward,
          .context = traits.context,
          .eps = traits.norm_eps,
          .rope_base = traits.rope_base,
          .activation = traits.activation == kernels::Activation::silu ? Activation::silu : Activation::relu2,
          .own_head = !traits.tied_output,
          .post_norms = traits.post_norms,
          .rope_in_block = rope_of_blocks(traits)};
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
    cannot(path, fmt::format("config.json: {} is {}", key, value->source()));
  }
  if (config.find("no_rope_layers")) cannot(path, "config.json: no_rope_layers is set");
  const std::optional<JsonValue> type = config.find("model_type");
  const std::string kind = type ? type->string("model_type") : "";
  for (const std::string_view other : {"gemma", "olmo", "gpt2"}) {
    if (kind.starts_with(other)) cannot(path, fmt::format("config.json: model_type is '{}'", kind));
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
        cannot(path, fmt::format("config.json: the rotary angles are scaled by '{}'", type->string(key)));
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

std::optional<models::Traits> known_traits(const files::JsonFile& config) {
  const JsonValue root = config.root();
  const std::optional<JsonValue> type = root.find("model_type");
  if (!type || models::find_model_type(type->string("model_type")) == nullptr) return std::nullopt;
  const bool complete = root.find("vocab_size") && (root.find("max_position_embeddings") || root.find("n_positions"));
  return complete ? std::optional(models::config_traits(config)) : std::nullopt;
}

ImportSizes read_import_sizes(const files::JsonFile& file, const std::string& path) {
  if (const std::optional<models::Traits> traits = known_traits(file)) return sizes_of(*traits, path);
  const JsonValue config = file.root();
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
      cannot(path, fmt::format("config.json: hidden_act is '{}'", text));
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

}  // namespace checkpoint

ImportedNetwork import_network(const std::string& path, const ImportOptions& options) {
  return checkpoint::import_network(files::TensorFile::open(path, options.eager), options);
}

}  // namespace imago
