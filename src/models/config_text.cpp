// Writes config.json: its keys are sorted, as transformers writes them.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/names.h"
#include "imago/error.h"
#include "models/architectures.h"
#include "models/fields.h"
#include "models/json_object.h"
#include "models/recipe_parts.h"
#include "models/rope.h"
#include "models/traits_reading.h"

namespace imago::models {

namespace {

using Kind = RopeScaling::Kind;

/// A JSON array of `yes` and `no`, one for each flag.
template <class Flags>
std::string list_of(const Flags& flags, std::string_view yes, std::string_view no) {
  std::string list = "[";
  for (const auto flag : flags) list.append(list.size() == 1 ? "" : ", ").append(flag ? yes : no);
  return list + "]";
}

/// The rotary share of a head: the simplest number whose product with `all` truncates to `some`.
double share_of(std::size_t some, std::size_t all) {
  const double share = static_cast<double>(some) / static_cast<double>(all);
  const bool same = static_cast<std::size_t>(static_cast<double>(all) * share) == some;
  return same ? share : std::nextafter(share, 1.0);
}

/// The object of one rotation.
JsonObject rope_object(const Traits& traits, const Rope& of, std::size_t head_values) {
  JsonObject rope;
  const RopeScaling& scaling = of.scaling;
  rope.text("rope_type", scaling.kind == Kind::linear         ? "linear"
                         : scaling.kind == Kind::llama3       ? "llama3"
                         : scaling.kind == Kind::yarn         ? "yarn"
                         : scaling.kind == Kind::proportional ? "proportional"
                                                              : "default");
  if (scaling.kind == Kind::proportional) {
    rope.number("partial_rotary_factor", scaling.factor);
  } else if (scaling.kind != Kind::none) {
    rope.number("factor", scaling.factor);
  }
  if (scaling.kind == Kind::llama3 || scaling.kind == Kind::yarn) {
    rope.size("original_max_position_embeddings", static_cast<std::size_t>(scaling.original_context));
  }
  if (scaling.kind == Kind::llama3) {
    rope.number("low_freq_factor", scaling.low_freq_factor);
    rope.number("high_freq_factor", scaling.high_freq_factor);
  }
  if (scaling.kind == Kind::yarn) {
    rope.number("beta_fast", scaling.beta_fast);
    rope.number("beta_slow", scaling.beta_slow);
    if (scaling.attention_factor != 0 && scaling.scale_growth == 0) {
      rope.number("attention_factor", scaling.attention_factor);
    }
    if (!scaling.truncate) rope.flag("truncate", false);
    if (scaling.scale_growth != 0) {
      rope.number("mscale", scaling.scale_growth);
      rope.number("mscale_all_dim", scaling.scale_growth);
    }
    if (traits.query_growth != 0) rope.number("llama_4_scaling_beta", traits.query_growth);
  }
  rope.number("rope_theta", of.base);
  if (of.rotary != head_values && traits.latent == 0) {
    rope.number("partial_rotary_factor", share_of(of.rotary, head_values));
  }
  return rope;
}

void write_rope(const Traits& traits, JsonObject& config) {
  const ArchitectureFacts& row = facts(traits.architecture);
  const Rope main = main_rope(traits);
  const std::string rope = rope_object(traits, main, traits.head_values).json(files::JsonStyle::compact);
  // transformers 4 reads `rope_theta` and `rope_scaling`, 5 prefers one object.
  if (main.scaling.kind != Kind::none && main.scaling.kind != Kind::proportional) config.raw("rope_scaling", rope);
  config.number("rope_theta", main.base);
  const bool partial = traits.latent == 0 && (row.rotary_share != 1 || main.rotary != traits.head_values);
  if (partial) {
    config.number("partial_rotary_factor", share_of(main.rotary, traits.head_values));
  }
  if (row.two_ropes) {
    const Rope windows = traits.window_rope.value_or(main);
    if (row.norms_around_zero) config.number("rope_local_base_freq", windows.base);
    const auto own = [&](const Rope& of, std::size_t head_values) {
      JsonObject object = rope_object(traits, of, head_values);
      if (of.scaling.kind != Kind::proportional && (partial || of.rotary != head_values)) {
        object.number("partial_rotary_factor", share_of(of.rotary, head_values));
      }
      return object.json(files::JsonStyle::compact);
    };
    JsonObject both;
    both.raw("full_attention", own(main, traits.head_values));
    both.raw("sliding_attention", own(windows, window_head_values(traits)));
    config.raw("rope_parameters", both.json(files::JsonStyle::compact));
  } else {
    config.raw("rope_parameters", rope);
  }
}

void write_windows(const Traits& traits, JsonObject& config) {
  const ArchitectureFacts& row = facts(traits.architecture);
  const std::vector<std::size_t> windows = window_of_blocks(traits);
  const std::size_t window = *std::max_element(windows.begin(), windows.end());
  if (row.windows == Windows::none) return;
  config.size_or_null(std::string(row.window_key), window);
  if (row.lists_layer_types) {
    config.raw("layer_types", list_of(windows, R"("sliding_attention")", R"("full_attention")"));
  }
  if (row.windows != Windows::if_asked) return;
  config.flag("use_sliding_window", window != 0);
  if (traits.architecture != Architecture::smollm3) config.size("max_window_layers", traits.blocks);
}

/// 1 / scale², as an integer if that gives the same scale.
std::string scalar_of(float scale) {
  const double scalar = 1 / (static_cast<double>(scale) * static_cast<double>(scale));
  const double whole = std::round(scalar);
  const bool same = static_cast<float>(1 / std::sqrt(whole)) == scale;
  return files::format_number(same ? whole : scalar);
}

/// 1 / scale in few digits if those give the same scale.
std::string inverse_of(float scale) {
  const double inverse = 1 / static_cast<double>(scale);
  const auto rounded = static_cast<float>(inverse);
  const bool same = static_cast<float>(1 / static_cast<double>(rounded)) == scale;
  return same ? files::format_number(rounded) : files::format_number(inverse);
}

void write_gemma3n(const Traits& traits, JsonObject& config) {
  config.size("altup_num_inputs", traits.streams);
  config.size("altup_active_idx", 0);
  config.flag("altup_correct_scale", true);
  config.size("laurel_rank", traits.laurel_rank);
  std::string widths, shares;
  for (const BlockTraits& one : traits.block) {
    widths += fmt::format("{}{}", widths.empty() ? "" : ", ", one.feed_forward);
    shares += fmt::format("{}{}", shares.empty() ? "" : ", ", files::format_number(one.sparsity));
  }
  config.raw("intermediate_size", fmt::format("[{}]", widths));
  config.raw("activation_sparsity_pattern", fmt::format("[{}]", shares));
}

void write_gemma4(const Traits& traits, JsonObject& config) {
  const std::size_t feed_forward = traits.block.front().feed_forward, usual = traits.kv_heads;
  config.size("head_dim", window_head_values(traits));
  config.flag("use_double_wide_mlp", traits.block.back().feed_forward != feed_forward);
  config.flag("attention_k_eq_v", std::ranges::any_of(traits.block, &BlockTraits::keys_are_values));
  config.flag("enable_moe_block", traits.experts_beside);
  if (traits.experts_beside) {
    config.size("intermediate_size", traits.shared_feed_forward);
    config.size("top_k_experts", traits.experts_used);
    config.size("num_experts", traits.experts);
    config.size("moe_intermediate_size", feed_forward);
  }
  JsonObject blocks;
  for (std::size_t block = 0; block < traits.blocks; ++block) {
    if (traits.block[block].window != 0 && kv_heads_of(traits, block) == usual) continue;
    JsonObject one;
    one.size("head_dim", head_values_of(traits, block));
    one.size("num_key_value_heads", kv_heads_of(traits, block));
    blocks.raw(fmt::format("{}", block), one.json(files::JsonStyle::compact));
  }
  config.raw("per_layer_config", blocks.json(files::JsonStyle::compact));
}

void write_gemma(const Traits& traits, JsonObject& config) {
  const auto shared = static_cast<std::size_t>(
      std::ranges::count_if(traits.block, [](const BlockTraits& one) { return one.cache.has_value(); }));
  config.size("num_kv_shared_layers", shared);
  config.size("hidden_size_per_layer_input", traits.layer_values);
  config.size("vocab_size_per_layer_input", traits.layer_values == 0 ? traits.vocabulary : traits.layer_vocabulary);
  config.number_or_null("final_logit_softcapping", traits.logit_cap);
  if (traits.architecture == Architecture::gemma3n) {
    write_gemma3n(traits, config);
  } else {
    write_gemma4(traits, config);
  }
}

void write_falcon(const Traits& traits, JsonObject& config) {
  // Models of one head of keys have another order of rows in transformers, which is the same for one head.
  const bool grouped = traits.kv_heads != 1 || !traits.shared_norm;
  config.flag("new_decoder_architecture", grouped);
  config.flag("multi_query", true);
  config.flag("parallel_attn", true);
  config.flag("alibi", false);
  config.flag("bias", false);
  config.size("num_kv_heads", traits.kv_heads);
  config.size("num_ln_in_parallel_attn", traits.shared_norm ? 1 : 2);
  config.size("ffn_hidden_size", traits.block.front().feed_forward);
}

/// Settings that one architecture has.
std::string types_of(const Traits& traits, std::string_view recurrent) {
  return list_of(attention_of_blocks(traits), R"("full_attention")", fmt::format("\"{}\"", recurrent));
}

/// What each block of one branch is.
std::string branches_of(const Traits& traits) {
  std::string list = "[";
  for (const BlockTraits& one : traits.block) {
    list.append(list.size() == 1 ? "" : ", ")
        .append(has_attention(one.mixer)  ? R"("full_attention")"
                : is_recurrent(one.mixer) ? R"("linear_attention")"
                : one.experts             ? R"("moe")"
                                          : R"("mlp")");
  }
  return list + "]";
}

void write_falcon_h1(const Traits& traits, JsonObject& config) {
  const Multipliers& by = traits.multipliers;
  config.size("mamba_d_ssm", traits.recurrent.scan.results());
  config.flag("mamba_rms_norm", traits.recurrent.norm_groups != 0);
  config.flag("mamba_norm_before_gate", false);
  config.number("embedding_multiplier", traits.embedding_scale);
  config.number("lm_head_multiplier", traits.logit_scale);
  config.number("attention_in_multiplier", by.attention_in);
  config.number("attention_out_multiplier", by.attention_out);
  config.number("key_multiplier", by.key);
  config.number("ssm_in_multiplier", by.scan_in);
  config.number("ssm_out_multiplier", by.scan_out);
  config.raw("mlp_multipliers", fmt::format("[{}, {}]", files::format_number(by.gate), files::format_number(by.down)));
  std::string scan;
  for (const float factor : by.scan) scan += (scan.empty() ? "" : ", ") + files::format_number(factor);
  config.raw("ssm_multipliers", fmt::format("[{}]", scan));
}

/// Nothing where steps have no limits, as in most files.
void write_step_limits(const RecurrentTraits& recurrent, JsonObject& config) {
  const bool ends = std::isfinite(recurrent.high_step);
  if (recurrent.low_step <= 0 && !ends) return;
  config.raw("time_step_limit",
             fmt::format("[{}, {}]", files::format_number(recurrent.low_step),
                         ends ? files::format_number(recurrent.high_step) : R"({"__float__": "Infinity"})"));
}

/// Which blocks attend, and the sizes of those that do not.
void write_mixers(const Traits& traits, JsonObject& config) {
  const std::string_view prefix = facts(traits.architecture).mixer_prefix;
  const RecurrentTraits& recurrent = traits.recurrent;
  const kernels::LinearScanShape& scan = recurrent.scan;
  if (prefix == "conv") {
    config.raw("layer_types", types_of(traits, "conv"));
    config.size("conv_L_cache", recurrent.kernel);
    config.flag("conv_bias", false);
    config.flag("block_auto_adjust_ff_dim", false);
  } else if (prefix == "linear_attn") {
    config.raw("layer_types", types_of(traits, "linear_attention"));
    config.size("linear_conv_kernel_dim", recurrent.kernel);
    config.size("linear_num_value_heads", scan.heads);
    config.size("linear_num_key_heads", scan.groups);
    config.size("linear_key_head_dim", scan.keys);
    config.size("linear_value_head_dim", scan.values);
    if (traits.shared_feed_forward != 0) {
      config.size("shared_expert_intermediate_size", traits.shared_feed_forward);
    }
  } else if (facts(traits.architecture).one_branch) {
    config.raw("layers_block_type", branches_of(traits));
    config.size("conv_kernel", recurrent.kernel);
    config.size("mamba_num_heads", scan.heads);
    config.size("n_groups", scan.groups);
    config.size("ssm_state_size", scan.keys);
    config.size("mamba_head_dim", scan.values);
    config.flag("use_conv_bias", true);
  } else if (prefix == "mamba") {
    if (facts(traits.architecture).multipliers) {
      write_falcon_h1(traits, config);
    } else {
      config.raw("layer_types", types_of(traits, "mamba"));
      config.text("position_embedding_type", traits.block.front().rope ? "rope" : "nope");
      config.size("shared_intermediate_size", traits.shared_feed_forward);
    }
    config.size("mamba_d_conv", recurrent.kernel);
    config.size("mamba_n_heads", scan.heads);
    config.size("mamba_n_groups", scan.groups);
    config.size("mamba_d_state", scan.keys);
    config.size("mamba_d_head", scan.values);
  }
  write_step_limits(recurrent, config);
}

/// Models without attention.
void write_scans(const Traits& traits, JsonObject& config) {
  const RecurrentTraits& recurrent = traits.recurrent;
  config.size("num_hidden_layers", traits.blocks);
  config.size("hidden_size", traits.width);
  config.number("layer_norm_epsilon", traits.norm_eps);
  config.size("conv_kernel", recurrent.kernel);
  config.flag("use_conv_bias", true);
  config.flag("use_bias", false);
  config.size("state_size", recurrent.scan.keys);
  config.text("hidden_act", "silu");
  if (traits.architecture == Architecture::mamba) {
    config.size("intermediate_size", recurrent.scan.heads);
    config.size("time_step_rank", recurrent.rank);
  } else {
    config.size("num_heads", recurrent.scan.heads);
    config.size("n_groups", recurrent.scan.groups);
    config.size("head_dim", recurrent.scan.values);
    config.size("expand", recurrent.scan.results() / traits.width);
  }
  write_step_limits(recurrent, config);
}

void write_special(const Traits& traits, const ConfigExtras& extras, JsonObject& config) {
  const Architecture architecture = traits.architecture;
  if (facts(architecture).norms_around_zero) {
    config.raw("query_pre_attn_scalar", scalar_of(traits.attention_scale));
    config.number_or_null("attn_logit_softcapping", traits.attention_cap);
    config.number_or_null("final_logit_softcapping", traits.logit_cap);
    if (facts(architecture).both_sides) config.flag("use_bidirectional_attention", true);
  } else if (has_multipliers(architecture)) {
    config.number("attention_multiplier", traits.attention_scale);
    config.number("embedding_multiplier", traits.embedding_scale);
    config.number("residual_multiplier", traits.residual_scale);
    config.raw("logits_scaling", inverse_of(traits.logit_scale));
  } else if (architecture == Architecture::smollm3) {
    config.size("no_rope_layer_interval", facts(architecture).no_rope_period);
    config.raw("no_rope_layers", list_of(rope_of_blocks(traits), "1", "0"));
  } else if (architecture == Architecture::glm4_moe) {
    config.flag("use_qk_norm", traits.query_norm != QueryNorm::none);
  } else if (facts(architecture).latent) {
    config.size("kv_lora_rank", traits.latent);
    config.size_or_null("q_lora_rank", traits.query_low);
    config.size("v_head_dim", traits.latent_values);
    config.size("qk_rope_head_dim", traits.rotary);
    config.size("qk_nope_head_dim", traits.head_values - traits.rotary);
    config.size("qk_head_dim", traits.head_values);
    config.flag("rope_interleave", traits.rope_pairs == kernels::RopePairs::adjacent);
    config.text("topk_method", architecture == Architecture::deepseek_v3 ? "noaux_tc"
                               : traits.expert_groups > 1                ? "group_limited_greedy"
                                                                         : "greedy");
    config.text("scoring_func", architecture == Architecture::deepseek_v3 ? "sigmoid" : "softmax");
  } else if (architecture == Architecture::minimax_m2) {
    config.size("rotary_dim", traits.rotary);
  } else if (architecture == Architecture::phi3) {
    config.size("original_max_position_embeddings", traits.context);
  } else if (architecture == Architecture::cohere2) {
    config.number("logit_scale", traits.logit_scale);
  } else if (architecture == Architecture::stablelm) {
    config.flag("use_qkv_bias", extras.attention_bias);
  } else if (architecture == Architecture::starcoder2) {
    config.flag("use_bias", extras.attention_bias);
  } else if (facts(architecture).shared_caches) {
    write_gemma(traits, config);
  } else if (architecture == Architecture::falcon) {
    write_falcon(traits, config);
  }
  if (facts(architecture).parallel == Parallel::stated) config.flag("use_parallel_residual", traits.parallel);
}

/// The blocks without experts from `first` on: "1, 3".
std::string dense_blocks_after(const Traits& traits, std::size_t first) {
  std::string numbers;
  for (std::size_t block = first; block < traits.blocks; ++block) {
    if (!traits.block[block].experts) numbers += fmt::format("{}{}", numbers.empty() ? "" : ", ", block);
  }
  return numbers;
}

void write_experts(const Traits& traits, const ConfigExtras& extras, JsonObject& config) {
  const ArchitectureFacts& row = facts(traits.architecture);
  const std::size_t width = expert_feed_forward(traits);
  if (width == 0 || traits.experts_beside) return;
  config.size("num_local_experts", traits.experts);
  config.size("num_experts_per_tok", traits.experts_used);
  if (!row.norm_experts || row.own_expert_width) config.flag("norm_topk_prob", traits.norm_expert_weights);
  if (row.own_expert_width) {
    config.size("moe_intermediate_size", width);
    config.size("intermediate_size", extras.dense_feed_forward);
  } else {
    config.size("intermediate_size", width);
  }
  const std::string dense = dense_blocks_after(traits, row.states_routing ? first_experts(traits) : 0);
  if (!row.one_branch && (traits.architecture == Architecture::qwen3_moe || !dense.empty())) {
    config.raw("mlp_only_layers", fmt::format("[{}]", dense));
  }
  if (traits.architecture == Architecture::qwen3_moe) {
    config.size("num_experts", traits.experts);
    config.size("decoder_sparse_step", 1);
  } else if (traits.architecture == Architecture::olmoe) {
    config.size("num_experts", traits.experts);
  }
  if (!row.states_routing) return;
  config.size("n_routed_experts", traits.experts);
  if (row.one_branch) {
    const bool shares = traits.shared_feed_forward != 0;
    config.size("n_shared_experts", shares ? 1 : 0);
    if (shares) config.size("moe_shared_expert_intermediate_size", traits.shared_feed_forward);
  } else {
    config.size("first_k_dense_replace", first_experts(traits));
    config.size("n_shared_experts", traits.shared_feed_forward / width);
  }
  config.size("n_group", traits.expert_groups);
  config.size("topk_group", traits.expert_groups_used);
  config.number("routed_scaling_factor", traits.expert_scale);
}

void write_gpt2(const Traits& traits, JsonObject& config) {
  config.size("n_layer", traits.blocks);
  config.size("n_embd", traits.width);
  config.size("n_head", traits.heads);
  config.size("n_inner", traits.block.front().feed_forward);
  config.size("n_positions", traits.context);
  config.size("n_ctx", traits.context);
  config.number("layer_norm_epsilon", traits.norm_eps);
  config.flag("scale_attn_weights", traits.attention_scale == usual_attention_scale(traits));
  config.text("activation_function", traits.activation == kernels::Activation::gelu
                                         ? "gelu_new"
                                         : name_in(kActivationNames, traits.activation, "silu"));
}

/// What bert and its kin have besides sizes and rotation.
void write_encoder(const Traits& traits, JsonObject& config) {
  const bool modern = traits.architecture == Architecture::modernbert;
  if (!modern) {
    config.text("position_embedding_type", traits.learned_positions ? "absolute" : "rope");
    config.size("type_vocab_size", traits.token_types);
  }
  if (modern) {  // as transformers 4 has it
    config.number("global_rope_theta", traits.rope_base);
    config.number("local_rope_theta", traits.window_rope ? traits.window_rope->base : traits.rope_base);
  }
  if (!traits.head.scores) return;
  std::string labels = "{";
  for (std::size_t i = 0; i < traits.head.results; ++i) {
    labels += fmt::format(R"({}"{}": "LABEL_{}")", i == 0 ? "" : ", ", i, i);
  }
  config.raw("id2label", labels + "}");
  if (!modern) return;
  config.text("classifier_activation", name_in(kActivationNames, traits.head.activation, "gelu"));
  config.text("classifier_pooling", traits.pooling == Pooling::mean ? "mean" : "cls");
}

/// The class of transformers that has what the model has.
std::string class_of(const Traits& traits) {
  std::string name(facts(traits.architecture).class_name);
  constexpr std::string_view kBare = "Model", kGenerates = "ForCausalLM";
  if (traits.head.scores) return name.substr(0, name.size() - kBare.size()) + "ForSequenceClassification";
  if (!traits.has_output && name.ends_with(kGenerates)) {
    name.replace(name.size() - kGenerates.size(), kGenerates.size(), kBare);
  }
  return name;
}

void write_decoder(const Traits& traits, const ConfigExtras& extras, JsonObject& config) {
  config.size("num_hidden_layers", traits.blocks);
  config.size("hidden_size", traits.width);
  config.size("num_attention_heads", traits.heads);
  config.size("num_key_value_heads", traits.kv_heads);
  config.size("head_dim", traits.latent != 0 ? traits.rotary : traits.head_values);
  config.size("intermediate_size",
              facts(traits.architecture).one_branch ? dense_feed_forward(traits) : traits.block.front().feed_forward);
  config.size("max_position_embeddings", traits.context);
  config.number(std::string(facts(traits.architecture).eps_key), traits.norm_eps);
  const std::string activation(name_in(kActivationNames, traits.activation, "silu"));
  config.text("hidden_act", activation);
  config.text(std::string(facts(traits.architecture).activation_key), activation);
  // qwen2 always has these biases and no key for them.
  if (traits.architecture != Architecture::qwen2) config.flag("attention_bias", extras.attention_bias);
  if (!traits.learned_positions) write_rope(traits, config);
  write_windows(traits, config);
  write_special(traits, extras, config);
  write_mixers(traits, config);
  write_experts(traits, extras, config);
  if (facts(traits.architecture).encoder) write_encoder(traits, config);
}

}  // namespace

std::string config_text(const Traits& traits, const ConfigExtras& extras) {
  const ArchitectureFacts& row = facts(traits.architecture);
  JsonObject config;
  config.raw("architectures", fmt::format("[{}]", files::quote_json(class_of(traits))));
  config.text("model_type", row.model_type);
  config.text("dtype", name(extras.dtype));
  config.text("torch_dtype", name(extras.dtype));
  config.size("vocab_size", traits.vocabulary);
  config.flag("tie_word_embeddings", traits.tied_output);
  if (traits.has_output) config.flag("use_cache", true);
  const auto id = [&](const char* key, const std::optional<std::int32_t>& value) {
    config.raw(key, value ? fmt::format("{}", *value) : "null");
  };
  id("bos_token_id", extras.bos);
  id("eos_token_id", extras.eos);
  id("pad_token_id", extras.padding);
  if (traits.architecture == Architecture::gpt2) {
    write_gpt2(traits, config);
  } else if (traits.architecture == Architecture::mamba || traits.architecture == Architecture::mamba2) {
    write_scans(traits, config);
  } else {
    write_decoder(traits, extras, config);
  }
  return config.json(files::JsonStyle::indented) + "\n";
}

}  // namespace imago::models
