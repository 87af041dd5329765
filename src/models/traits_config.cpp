// Traits of a config.json. Rotary embeddings are `rope_theta` and `rope_scaling` in older files, `rope_parameters` in
// newer ones.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "files/published.h"
#include "imago/error.h"
#include "models/architectures.h"
#include "models/fields.h"
#include "models/mixers.h"
#include "models/rope.h"
#include "models/traits_reading.h"

namespace imago::models {

namespace {

using Kind = RopeScaling::Kind;

/// A field that newer files keep in `rope_parameters` and older ones beside everything else.
double stated(const ConfigFields& config, const std::optional<ConfigFields>& rope, std::string_view key, double high,
              double fallback) {
  if (rope && rope->has(key)) return rope->positive(key, high);
  return config.positive(key, high, fallback);
}

double original_context(const ConfigFields& config, const ConfigFields& rope, std::size_t fallback) {
  constexpr std::string_view key = "original_max_position_embeddings";
  const ConfigFields& place = rope.has(key) ? rope : config;
  return static_cast<double>(place.size(key, kMaxContext, fallback));
}

RopeScaling read_llama3(const ConfigFields& config, const ConfigFields& rope) {
  RopeScaling scaling{.kind = Kind::llama3};
  scaling.factor = rope.positive("factor", kMaxFactor);
  scaling.low_freq_factor = rope.positive("low_freq_factor", kMaxFactor);
  scaling.high_freq_factor = rope.positive("high_freq_factor", kMaxFactor);
  scaling.original_context = original_context(config, rope, 0);
  if (scaling.original_context == 0) rope.fail("llama3 needs 'original_max_position_embeddings', which is missing");
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    rope.fail(fmt::format("high_freq_factor must be above low_freq_factor, but they are {} and {}",
                          scaling.high_freq_factor, scaling.low_freq_factor));
  }
  return scaling;
}

RopeScaling read_yarn(const ConfigFields& config, const ConfigFields& rope, std::size_t context) {
  RopeScaling scaling{.kind = Kind::yarn};
  scaling.original_context = original_context(config, rope, context);
  scaling.factor =
      rope.positive("factor", kMaxFactor, std::max(1.0, static_cast<double>(context) / scaling.original_context));
  scaling.beta_fast = rope.positive("beta_fast", kMaxFactor, scaling.beta_fast);
  scaling.beta_slow = rope.positive("beta_slow", kMaxFactor, scaling.beta_slow);
  scaling.truncate = rope.flag("truncate", true);
  if (rope.has("attention_factor")) {
    scaling.attention_factor = rope.positive("attention_factor", kMaxFactor);
  } else if (rope.has("mscale") && rope.has("mscale_all_dim")) {
    const auto grown = [&](double weight) { return weight * (yarn_attention_factor(scaling.factor) - 1) + 1; };
    scaling.scale_growth = rope.positive("mscale_all_dim", kMaxFactor);
    scaling.attention_factor = grown(rope.positive("mscale", kMaxFactor)) / grown(scaling.scale_growth);
  }
  return scaling;
}

bool all_ones(const ConfigFields& rope, std::string_view key) {
  const std::optional<files::JsonValue> list = rope.find(key);
  if (!list) return false;
  for (const files::JsonMember member : list->elements(key)) {
    if (member.value.number(key) != 1) return false;
  }
  return true;
}

/// Longrope changes nothing where all its factors are 1 and the context is the one trained on.
void refuse_longrope(const ConfigFields& config, const ConfigFields& rope, std::size_t context) {
  const bool nothing = all_ones(rope, "short_factor") && all_ones(rope, "long_factor") &&
                       original_context(config, rope, context) >= static_cast<double>(context) &&
                       rope.positive("attention_factor", kMaxFactor, 1) == 1;
  if (!nothing) {
    config.refuse(
        "rope scaling of type 'longrope' (two sets of factors, for short and long texts) is not supported; "
        "known are linear, llama3 and yarn");
  }
}

/// A larger base in place of a scaling that follows the length of the text: Hunyuan's `alpha`.
void read_alpha(const ConfigFields& rope, const Traits& traits, Rope& made) {
  const auto values = static_cast<double>(traits.head_values);
  made.base *= std::pow(rope.positive("alpha", kMaxFactor), values / (values - 2));
  if (!(made.base <= kMaxRopeBase)) rope.fail(fmt::format("alpha leads to a rope base of {:g}", made.base));
}

/// One rotation. `rope`: the object with its fields, if there is one.
Rope read_rope(const ConfigFields& config, const std::optional<ConfigFields>& rope, const Traits& traits,
               double fallback_base, std::size_t head_values) {
  Rope made;
  const std::string_view base = config.either(config.either("rope_theta", "rotary_emb_base"), "global_rope_theta");
  made.base = stated(config, rope, base, kMaxRopeBase, fallback_base);
  const double share = stated(config, rope, config.either("partial_rotary_factor", "rotary_pct"), 1,
                              facts(traits.architecture).rotary_share);
  const auto rotary = static_cast<std::size_t>(static_cast<double>(head_values) * share);
  made.rotary = traits.latent != 0 ? traits.rotary : config.size("rotary_dim", kMaxHeadValues, rotary);
  if (!rope) return made;

  const std::string type = rope->text(rope->either("rope_type", "type"), "default");
  if (type == "linear") {
    made.scaling = {.kind = Kind::linear, .factor = rope->positive("factor", kMaxFactor)};
  } else if (type == "llama3") {
    made.scaling = read_llama3(config, *rope);
  } else if (type == "yarn") {
    made.scaling = read_yarn(config, *rope, traits.context);
    if (traits.latent == 0) made.scaling.scale_growth = 0;
  } else if (type == "longrope" || type == "su") {
    refuse_longrope(config, *rope, traits.context);
  } else if (type == "proportional") {
    made.rotary = head_values;
    made.scaling = {.kind = Kind::proportional, .factor = share};
  } else if (type == "dynamic" && rope->has("alpha") && traits.head_values > 2) {
    read_alpha(*rope, traits, made);
  } else if (type != "default") {
    config.refuse(fmt::format("rope scaling of type '{}' is not supported; known are linear, llama3 and yarn", type));
  }
  return made;
}

/// Fills all that is said about rotation. REQUIRES: head_values and context are set.
void read_config_rope(const ConfigFields& config, Traits& traits) {
  const ArchitectureFacts& row = facts(traits.architecture);
  const std::string_view key = config.either("rope_parameters", "rope_scaling");
  std::optional<ConfigFields> rope = config.object(key), of_windows;
  if (rope && (rope->has("full_attention") || rope->has("sliding_attention"))) {
    if (!row.two_ropes) {
      config.refuse(fmt::format("'{}' with a set for each kind of attention is not supported here", key));
    }
    of_windows = rope->object("sliding_attention");
    rope = rope->object("full_attention");
  }
  const Rope main = read_rope(config, rope, traits, traits.rope_base, traits.head_values);
  traits.rope_base = main.base;
  traits.rotary = main.rotary;
  traits.rope_scaling = main.scaling;
  traits.attention_scale *= scale_growth(main.scaling);
  const double base = row.window_rope_base == 0 ? main.base : row.window_rope_base;
  if (of_windows) {
    traits.window_rope = read_rope(config, of_windows, traits, base, window_head_values(traits));
  } else if (row.two_ropes) {
    // Scaling is for the blocks that see all of a long text.
    traits.window_rope = {
        config.positive(config.either("rope_local_base_freq", "local_rope_theta"), kMaxRopeBase, base),
        std::min(main.rotary, window_head_values(traits)),
        {}};
  }
  if (traits.window_rope == main) traits.window_rope.reset();
  if (rope && rope->has("llama_4_scaling_beta")) {
    traits.query_growth = rope->positive("llama_4_scaling_beta", kMaxFactor);
    if (traits.rope_scaling.original_context == 0) {
      rope->fail("llama_4_scaling_beta needs 'original_max_position_embeddings', which is missing");
    }
  }
}

/// Whether tokens of a text see those after them. "vision" says so of images only.
bool sees_both_sides(const ConfigFields& config) {
  constexpr std::string_view key = "use_bidirectional_attention";
  const auto value = config.find(key);
  if (!value || value->kind() != files::JsonKind::string) return config.flag(key, false);
  return value->string(key) != "vision";
}

const ArchitectureFacts& read_architecture(const ConfigFields& config) {
  const std::string model_type = config.text("model_type");
  const ArchitectureFacts* row = find_model_type(model_type);
  if (row == nullptr) {
    config.refuse(fmt::format("models of type '{}' are not supported; known are {}", model_type, known_model_types()));
  }
  if (!sees_both_sides(config)) return *row;
  if (row->architecture != Architecture::gemma3) {
    config.refuse("'use_bidirectional_attention' is set, which is not supported");
  }
  return facts(Architecture::embedding_gemma);
}

void refuse_unsupported(const ConfigFields& config) {
  if (config.positive("swiglu_limit", kMaxFactor, kernels::kSwishLimit) != static_cast<double>(kernels::kSwishLimit)) {
    config.refuse(fmt::format("'swiglu_limit' other than {} is not supported", kernels::kSwishLimit));
  }
  if (config.has("clip_qkv")) config.refuse("'clip_qkv' (limits of queries, keys and values) is not supported");
  if (const auto quantization = config.find("quantization_config")) {
    if (const std::string problem = files::quantization_problem(*quantization); !problem.empty()) {
      config.refuse(problem);
    }
  }
  for (const std::string_view key : {"mlp_bias", "add_cross_attention", "scale_attn_by_inverse_layer_idx",
                                     "is_encoder_decoder", "alibi", "qk_layernorm"}) {
    if (config.flag(key, false)) config.refuse(fmt::format("'{}' is true, which is not supported", key));
  }
}

void read_gpt2_sizes(const ConfigFields& config, Traits& traits) {
  traits.blocks = config.size("n_layer", kMaxBlocks);
  traits.block.assign(traits.blocks, {.rope = !traits.learned_positions});
  traits.width = config.size("n_embd", kMaxWidth);
  traits.heads = traits.kv_heads = config.size("n_head", kMaxHeads);
  if (traits.width % traits.heads != 0) {
    config.fail(fmt::format("n_embd is {}, which is not a multiple of n_head = {}", traits.width, traits.heads));
  }
  traits.head_values = traits.width / traits.heads;
  set_feed_forward(traits, config.size("n_inner", kMaxFeedForward, 4 * traits.width));
  traits.context = config.size(config.either("n_positions", "n_ctx"), kMaxContext);
  traits.norm_eps = config.positive("layer_norm_epsilon", kMaxEps, 1e-5);
  traits.activation = read_activation(config, "activation_function", traits.activation);
  traits.attention_scale = config.flag("scale_attn_weights", true) ? usual_attention_scale(traits) : 1.0F;
}

/// Latent attention: `rotary` and `head_values` mean other things than elsewhere.
void read_latent(const ConfigFields& config, Traits& traits) {
  traits.latent = config.size("kv_lora_rank", kMaxWidth);
  traits.query_low = config.size("q_lora_rank", kMaxWidth, 0);
  traits.latent_values = config.size("v_head_dim", kMaxHeadValues);
  traits.rotary = config.size("qk_rope_head_dim", kMaxHeadValues);
  traits.head_values = config.size("qk_nope_head_dim", kMaxHeadValues) + traits.rotary;
  traits.kv_heads = traits.heads;
  traits.attention_scale = usual_attention_scale(traits);
  if (!config.flag("rope_interleave", true)) traits.rope_pairs = kernels::RopePairs::halves;
  const std::string method = config.text("topk_method", "greedy");
  if (method == "greedy" && traits.architecture == Architecture::deepseek_v2) {
    traits.expert_groups = traits.expert_groups_used = 1;
  } else if (method != "greedy" && method != "group_limited_greedy" && method != "noaux_tc") {
    config.refuse(fmt::format("'topk_method' '{}' is not supported", method));
  }
}

/// What config.json may leave out, because the class of the model has it; 0: it must be there, or follows from others.
struct Defaults {
  Architecture architecture;
  std::size_t head_values = 0, heads = 0, kv_heads = 0, vocabulary = 0, context = 0;
};
constexpr Defaults kDefaults[] = {
    {Architecture::gemma2, 256},
    {Architecture::qwen3, 128},
    {Architecture::falcon, 0, 0, 0, 0, 2048},
    {Architecture::gemma3, 256, 8, 4, 262208, 131072},
    {Architecture::embedding_gemma, 256, 8, 4, 262208, 131072},
    {Architecture::gemma3n, 256, 8, 2, 262400, 32768},
    {Architecture::gemma4, 256, 8, 4, 262144, 131072},
};
Defaults defaults_of(Architecture architecture) {
  const auto* const found = std::ranges::find(kDefaults, architecture, &Defaults::architecture);
  return found == std::end(kDefaults) ? Defaults{architecture} : *found;
}

std::size_t size_or(const ConfigFields& config, std::string_view key, std::int64_t high, std::size_t fallback) {
  return fallback == 0 ? config.size(key, high) : config.size(key, high, fallback);
}

std::size_t read_head_values(const ConfigFields& config, const Traits& traits) {
  const std::string_view key = config.either("head_dim", "attention_head_dim");
  if (config.has(key)) return config.size(key, kMaxHeadValues);
  if (const std::size_t usual = defaults_of(traits.architecture).head_values; usual != 0) return usual;
  if (traits.width % traits.heads != 0) {
    config.fail(
        fmt::format("hidden_size is {}, which is not a multiple of num_attention_heads = {}, and there is no head_dim",
                    traits.width, traits.heads));
  }
  return traits.width / traits.heads;
}

/// Checks models without attention.
void read_scan_sizes(const ConfigFields& config, Traits& traits) {
  constexpr std::size_t kContext = std::size_t{1} << 20;  // as converters have it: a state has no end
  traits.blocks = config.size("num_hidden_layers", kMaxBlocks);
  traits.block.assign(traits.blocks, {});
  traits.width = config.size("hidden_size", kMaxWidth);
  traits.context = kContext;
  traits.norm_eps = config.positive(facts(traits.architecture).eps_key, kMaxEps, 1e-5);
}

std::size_t read_kv_heads(const ConfigFields& config, const Traits& traits) {
  if (traits.architecture == Architecture::falcon && !config.flag("new_decoder_architecture", false)) {
    return config.flag("multi_query", true) ? 1 : traits.heads;
  }
  const std::size_t usual = defaults_of(traits.architecture).kv_heads;
  return config.size(config.either("num_key_value_heads", "num_kv_heads"), kMaxHeads,
                     usual == 0 ? traits.heads : usual);
}

void read_sizes(const ConfigFields& config, Traits& traits) {
  const ArchitectureFacts& row = facts(traits.architecture);
  const Defaults usual = defaults_of(traits.architecture);
  if (row.one_branch) {
    read_config_branches(config, traits);
  } else {
    traits.blocks = config.size("num_hidden_layers", kMaxBlocks);
    traits.block.assign(traits.blocks, {.rope = !traits.learned_positions});
  }
  traits.width = config.size("hidden_size", kMaxWidth);
  traits.heads = size_or(config, "num_attention_heads", kMaxHeads, usual.heads);
  traits.kv_heads = read_kv_heads(config, traits);
  traits.head_values = read_head_values(config, traits);
  read_config_feed_forward(config, traits);
  traits.context = size_or(config, "max_position_embeddings", kMaxContext, usual.context);
  traits.norm_eps = config.positive(row.eps_key, kMaxEps, traits.norm == NormKind::layer ? 1e-5 : 1e-6);
  if (traits.activation != kernels::Activation::clamped_swish) {  // which has no name of its own
    traits.activation = read_activation(config, config.either(row.activation_key, "hidden_act"), traits.activation);
  }
  traits.attention_scale = usual_attention_scale(traits);
  if (facts(traits.architecture).latent) read_latent(config, traits);
}

/// How the branches of a block stand to each other, and which norms they have.
void read_branches(const ConfigFields& config, Traits& traits) {
  const ArchitectureFacts& row = facts(traits.architecture);
  if (row.parallel == Parallel::stated) {
    traits.parallel = config.flag("use_parallel_residual", traits.architecture == Architecture::gpt_neox);
    traits.shared_norm = traits.parallel && row.shared_norm;
  }
  if (traits.architecture == Architecture::falcon) {
    if (!config.flag("parallel_attn", true)) config.refuse("'parallel_attn' is false, which is not supported");
    if (config.flag("bias", false)) config.refuse("'bias' is true, which is not supported");
    const bool two = config.flag("new_decoder_architecture", false);
    traits.shared_norm = config.size("num_ln_in_parallel_attn", 2, two ? 2 : 1) == 1;
  } else if (traits.architecture == Architecture::ernie4_5 && config.flag("use_bias", false)) {
    config.refuse("'use_bias' is true, which is not supported");
  } else if (traits.architecture == Architecture::hunyuan_v1_dense && !config.flag("use_qk_norm", true)) {
    traits.query_norm = QueryNorm::none;
  } else if (traits.architecture == Architecture::glm4_moe && !config.flag("use_qk_norm", false)) {
    traits.query_norm = QueryNorm::none;
  }
}

void read_rope_blocks(const ConfigFields& config, Traits& traits) {
  const std::size_t period = facts(traits.architecture).no_rope_period;
  if (period == 0) return;
  if (const auto list = config.find("no_rope_layers")) {
    for_each_block(*list, "no_rope_layers", traits.blocks, [&](std::size_t block, const files::JsonValue& entry) {
      traits.block[block].rope = entry.integer("an entry of no_rope_layers", 0, 1) == 1;  // 1: it has rope
    });
  } else {
    set_rope(traits, all_but_every(config.size("no_rope_layer_interval", kMaxBlocks, period), traits.blocks));
  }
}

/// Which blocks have a window, where the file does not list it.
bool has_window(const ConfigFields& config, const Traits& traits, std::size_t block) {
  const ArchitectureFacts& row = facts(traits.architecture);
  if (row.windows == Windows::none) return false;
  if (row.windows == Windows::always) {
    const std::size_t period = config.size("global_attn_every_n_layers", kMaxBlocks, row.full_period);
    return all_but_some(row, period, traits.blocks)[block];
  }
  if (!config.flag("use_sliding_window", false)) return false;
  if (traits.architecture == Architecture::qwen3_moe) return true;
  if (traits.architecture == Architecture::smollm3) return !traits.block[block].rope;
  return block >= config.size("max_window_layers", kMaxBlocks, 28);
}

void read_windows(const ConfigFields& config, Traits& traits) {
  const ArchitectureFacts& row = facts(traits.architecture);
  const std::size_t window = config.size(row.window_key, kMaxContext, row.usual_window);
  const auto types = config.find("layer_types");
  if (!types || !row.lists_layer_types) {
    for (std::size_t block = 0; block < traits.blocks; ++block) {
      if (window > 0 && has_window(config, traits, block)) traits.block[block].window = window;
    }
    return;
  }
  for_each_block(*types, "layer_types", traits.blocks, [&](std::size_t block, const files::JsonValue& entry) {
    const std::string type = entry.string("an entry of layer_types");
    if (type == "sliding_attention") {
      if (window == 0)
        types->fail(fmt::format("layer_types has sliding_attention, but there is no {}", row.window_key));
      traits.block[block].window = window;
    } else if (type != "full_attention") {
      config.refuse(
          fmt::format("attention of type '{}' in layer_types is not supported; known are full_attention and "
                      "sliding_attention",
                      type));
    }
  });
}

/// How many classes a classifier tells apart; 0 for other models.
std::size_t read_classes(const ConfigFields& config) {
  const auto classes = config.find("architectures");
  if (!classes) return 0;
  bool classifies = false;
  for (const files::JsonMember one : classes->elements("architectures")) {
    classifies = classifies || one.value.string("a class in architectures").ends_with("ForSequenceClassification");
  }
  if (!classifies) return 0;
  if (const auto labels = config.find("id2label")) return labels->members("id2label").size();
  return config.size("num_labels", kMaxClasses, 2);
}

void read_encoder(const ConfigFields& config, Traits& traits) {
  const bool modern = traits.architecture == Architecture::modernbert;
  if (modern) traits.block.front().attention_norm = false;
  for (const std::string_view key : {"is_decoder", "prenorm", "parallel_block", "use_rms_norm", "norm_bias",
                                     "rotary_emb_interleaved", "moe_every_n_layers"}) {
    const auto value = config.find(key);
    const bool asked =
        value && (value->kind() == files::JsonKind::number ? value->number(key) != 0 : value->boolean(key));
    if (asked) config.refuse(fmt::format("'{}' is set, which is not supported", key));
  }
  const std::string positions = config.text("position_embedding_type", "absolute");
  if (!modern && positions != "absolute" && positions != "rope") {
    config.refuse(fmt::format("position embeddings of type '{}' are not supported; known are absolute", positions));
  }
  if (!modern) traits.token_types = config.size("type_vocab_size", kMaxTokenTypes, 2);
  if (traits.architecture == Architecture::nomic_bert) return;
  traits.head.results = read_classes(config);
  if (traits.head.results == 0) return;
  if (traits.head.results > static_cast<std::size_t>(kMaxClasses)) {
    config.fail(fmt::format("id2label has {} classes; it can have 1 to {}", traits.head.results, kMaxClasses));
  }
  traits.head.scores = true;
  traits.head.hidden = traits.width;
  traits.head.norm = modern;
  traits.head.activation = kernels::Activation::tanh;
  traits.pooling = Pooling::cls;
  if (!modern) return;
  traits.head.activation = read_activation(config, "classifier_activation", kernels::Activation::gelu_erf);
  const std::string pooling = config.text("classifier_pooling", "cls");
  if (pooling == "mean") traits.pooling = Pooling::mean;
  if (pooling != "mean" && pooling != "cls") {
    config.refuse(fmt::format("classifier_pooling '{}' is not supported; known are cls and mean", pooling));
  }
}

float read_cap(const ConfigFields& config, std::string_view key, float fallback) {
  if (!config.states(key)) return fallback;
  return config.has(key) ? static_cast<float>(config.positive(key, kMaxFactor)) : 0.0F;
}

void read_multipliers(const ConfigFields& config, Traits& traits) {
  if (facts(traits.architecture).norms_around_zero) {
    const bool capped = traits.architecture == Architecture::gemma2;
    traits.norm_offset = 1;
    traits.attention_scale =
        static_cast<float>(1 / std::sqrt(config.positive("query_pre_attn_scalar", kMaxFactor, 256)));
    traits.attention_cap = read_cap(config, "attn_logit_softcapping", capped ? 50 : 0);
    traits.logit_cap = read_cap(config, "final_logit_softcapping", capped ? 30 : 0);
    traits.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(traits.width)));
  } else if (has_multipliers(traits.architecture)) {
    traits.embedding_scale = static_cast<float>(config.multiplier("embedding_multiplier", 1));
    traits.residual_scale = static_cast<float>(config.multiplier("residual_multiplier", 1));
    traits.attention_scale = static_cast<float>(config.multiplier("attention_multiplier", 1));
    traits.logit_scale = static_cast<float>(1 / config.multiplier("logits_scaling", 1));
  } else if (facts(traits.architecture).multipliers) {
    traits.embedding_scale = static_cast<float>(config.multiplier("embedding_multiplier", 1));
    traits.logit_scale = static_cast<float>(config.multiplier("lm_head_multiplier", 1));
  } else if (traits.architecture == Architecture::cohere2) {
    traits.logit_scale = static_cast<float>(config.multiplier("logit_scale", 0.0625));
  }
}

}  // namespace

ConfigFields text_fields(const ConfigFields& whole) {
  if (std::optional<ConfigFields> text = whole.object("text_config")) return std::move(*text);
  return whole;
}

Traits config_traits(const files::JsonFile& file) {
  const ConfigFields whole(file.root(), file.path());
  const ConfigFields config = text_fields(whole);
  const ArchitectureFacts& row = read_architecture(config);
  refuse_unsupported(whole);
  refuse_unsupported(config);
  Traits traits = traits_of(row.architecture);
  traits.vocabulary = size_or(config, "vocab_size", kMaxVocabulary, defaults_of(row.architecture).vocabulary);
  // nomic_bert has its sizes under the names of gpt2 in the configuration that came with its own code.
  const bool gpt2_names = row.architecture == Architecture::nomic_bert && config.has("n_embd");
  const bool scans_only = row.architecture == Architecture::mamba || row.architecture == Architecture::mamba2;
  if (row.architecture == Architecture::gpt2 || gpt2_names) {
    read_gpt2_sizes(config, traits);
  } else if (scans_only) {
    read_scan_sizes(config, traits);
  } else {
    read_sizes(config, traits);
    if (row.shared_caches) {
      read_windows(config, traits);
      read_config_gemma(config, traits);
    }
    read_branches(config, traits);
  }
  if (!traits.learned_positions && !scans_only) read_config_rope(config, traits);
  if (row.encoder) read_encoder(config, traits);
  read_config_mixers(config, traits);
  read_rope_blocks(config, traits);
  read_windows(config, traits);
  if (row.full_without_rope) set_rope(traits, usual_rope(traits));
  read_multipliers(config, traits);
  traits.tied_output =
      traits.has_output && config.flag("tie_word_embeddings", whole.flag("tie_word_embeddings", row.tied_by_default));
  check_traits(traits, config,
               {"num_attention_heads", "num_key_value_heads", "partial_rotary_factor", std::string(experts_key(config)),
                "num_experts_per_tok", "n_group", "topk_group"});
  return traits;
}

void read_dense(std::span<const files::DenseModule> modules, Traits& traits) {
  Head& head = traits.head;
  std::size_t inputs = traits.width;
  for (const files::DenseModule& module : modules) {
    const ConfigFields config(module.config.root(), module.config.path());
    if (config.size("in_features", kMaxFeedForward) != inputs) {
      config.fail(fmt::format("in_features is {}, but what comes before has {} values",
                              config.size("in_features", kMaxFeedForward), inputs));
    }
    inputs = config.size("out_features", kMaxFeedForward);
    const std::string name = config.text("activation_function", "torch.nn.modules.activation.Tanh");
    constexpr std::pair<std::string_view, kernels::Activation> kModuleActivations[] = {
        {"Identity", kernels::Activation::linear}, {"Tanh", kernels::Activation::tanh},
        {"ReLU", kernels::Activation::relu},       {"Sigmoid", kernels::Activation::sigmoid},
        {"GELU", kernels::Activation::gelu_erf},   {"SiLU", kernels::Activation::silu}};
    const auto* const known = std::ranges::find(kModuleActivations, std::string_view(name).substr(name.rfind('.') + 1),
                                                &std::pair<std::string_view, kernels::Activation>::first);
    if (known == std::end(kModuleActivations)) {
      config.refuse(fmt::format(
          "activation_function '{}' is not supported; known are Identity, Tanh, ReLU, Sigmoid, GELU and SiLU", name));
    }
    const bool last = &module == &modules.back();
    (last ? head.results : head.hidden) = inputs;
    (last ? head.result_activation : head.activation) = known->second;
  }
}

bool names_bare_model(const files::JsonFile& config) {
  const auto is_bare = [](std::string_view name) { return name.ends_with("Model") && !name.ends_with("HeadModel"); };
  const auto classes = config.root().find("architectures");
  if (!classes) return false;
  for (const files::JsonMember one : classes->elements("architectures")) {
    return is_bare(one.value.string("a class in architectures"));
  }
  return false;
}

Pooling read_pooling(const files::JsonFile& file) {
  const ConfigFields config(file.root(), file.path());
  constexpr std::pair<std::string_view, Pooling> kFlags[] = {{"pooling_mode_mean_tokens", Pooling::mean},
                                                             {"pooling_mode_cls_token", Pooling::cls},
                                                             {"pooling_mode_lasttoken", Pooling::last}};
  for (const auto& [key, pooling] : kFlags) {
    if (config.flag(key, false)) return pooling;
  }
  constexpr std::pair<std::string_view, Pooling> kModes[] = {
      {"mean", Pooling::mean}, {"cls", Pooling::cls}, {"lasttoken", Pooling::last}};
  const std::string name = config.text("pooling_mode", "");
  for (const auto& [known, pooling] : kModes) {
    if (known == name) return pooling;
  }
  config.refuse("this pooling is not supported; known are the mean, the first (cls) and the last token");
}

}  // namespace imago::models
