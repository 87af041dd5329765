// Converts a Hugging Face folder to a GGUF file that llama.cpp loads. The metadata have the keys that llama.cpp reads,
// and some that its loaders ignore for an architecture but imago reads.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>

#include "base/names.h"
#include "imago/error.h"
#include "models/architectures.h"
#include "models/recipe_parts.h"
#include "models/rope.h"
#include "models/traits_reading.h"

namespace imago::models {

namespace {

using Kind = RopeScaling::Kind;

class MetadataWriter {
 public:
  explicit MetadataWriter(std::string_view architecture) : prefix_(std::string(architecture) + ".") {}
  void size(std::string_view key, std::size_t value) { add(key, static_cast<std::uint32_t>(value)); }
  void number(std::string_view key, double value) { add(key, static_cast<float>(value)); }
  void add(std::string_view key, GgufValue value) { list_.push_back({prefix_ + std::string(key), std::move(value)}); }
  void flags(std::string_view key, const std::vector<bool>& values) {
    const auto plain = std::make_unique<bool[]>(values.size());
    std::copy(values.begin(), values.end(), plain.get());
    add(key, GgufArray::of<bool>(std::span<const bool>(plain.get(), values.size())));
  }
  /// One number if all are the same.
  void sizes(std::string_view key, const std::vector<std::size_t>& values) {
    if (std::ranges::adjacent_find(values, std::not_equal_to()) == values.end()) return size(key, values.front());
    const std::vector<std::uint32_t> numbers(values.begin(), values.end());
    add(key, GgufArray::of<std::uint32_t>(numbers));
  }
  std::vector<GgufMetadata> take() { return std::move(list_); }

 private:
  std::string prefix_;
  std::vector<GgufMetadata> list_;
};

void write_rope(const Traits& traits, MetadataWriter& out) {
  if (traits.learned_positions) return;
  out.size("rope.dimension_count", traits.rotary);
  out.number("rope.freq_base", traits.rope_base);
  if (traits.window_rope && traits.window_rope->base != traits.rope_base) {
    out.number("rope.freq_base_swa", traits.window_rope->base);
  }
  if (traits.window_rope && traits.window_rope->rotary != traits.rotary) {
    out.size("rope.dimension_count_swa", traits.window_rope->rotary);
  }
  if (traits.query_growth != 0) out.number("attention.temperature_scale", traits.query_growth);
  const RopeScaling& scaling = traits.rope_scaling;
  if (scaling.kind == Kind::linear) {
    out.add("rope.scaling.type", "linear");
    out.number("rope.scaling.factor", scaling.factor);
  } else if (scaling.kind == Kind::yarn) {
    out.add("rope.scaling.type", "yarn");
    out.number("rope.scaling.factor", scaling.factor);
    out.size("rope.scaling.original_context_length", static_cast<std::size_t>(scaling.original_context));
    out.number("rope.scaling.yarn_beta_fast", scaling.beta_fast);
    out.number("rope.scaling.yarn_beta_slow", scaling.beta_slow);
    if (scaling.truncate != facts(traits.architecture).yarn_truncates) {
      out.add("rope.scaling.yarn_truncate", scaling.truncate);
    }
    if (scaling.scale_growth != 0) {
      out.number("rope.scaling.yarn_log_multiplier", 0.1 * scaling.scale_growth);
      return;
    }
    if (scaling.attention_factor == 1 && traits.architecture == Architecture::ministral3) {
      out.number("rope.scaling.yarn_log_multiplier", 1);
    } else if (scaling.attention_factor != 0) {
      out.number("rope.scaling.attn_factor", scaling.attention_factor / yarn_attention_factor(scaling.factor));
      out.number("rope.scaling.yarn_attn_factor", scaling.attention_factor);
    }
  }
}

std::size_t window_of(const Traits& traits) {
  const std::vector<std::size_t> windows = window_of_blocks(traits);
  return *std::max_element(windows.begin(), windows.end());
}

/// Whether a reader assumes these windows if the file does not list them.
bool has_usual_windows(const Traits& traits) {
  const ArchitectureFacts& row = facts(traits.architecture);
  return windowed(traits) == all_but_some(row, row.full_period, traits.blocks);
}

void write_windows(const Traits& traits, MetadataWriter& out) {
  const ArchitectureFacts& row = facts(traits.architecture);
  const std::size_t window = window_of(traits);
  if (window == 0) {
    // Without this key llama.cpp assumes 4096, or fails.
    constexpr Architecture kAlways[] = {Architecture::gemma2, Architecture::phi3, Architecture::cohere2};
    if (std::ranges::find(kAlways, traits.architecture) != std::end(kAlways)) {
      out.size("attention.sliding_window", 0);
    }
    return;
  }
  out.size("attention.sliding_window", window);
  if (has_usual_windows(traits) && !row.shared_caches) return;
  for (std::size_t period = 1; row.full_first && period <= traits.blocks; ++period) {
    if (windowed(traits) != all_but_some(row, period, traits.blocks)) continue;
    return out.size("attention.sliding_window_pattern", period);  // llama.cpp reads no list here
  }
  out.flags("attention.sliding_window_pattern", windowed(traits));
}

/// Which blocks attend, and the sizes of those that do not.
void write_mixers(const Traits& traits, MetadataWriter& out) {
  const std::string_view prefix = facts(traits.architecture).mixer_prefix;
  const RecurrentTraits& recurrent = traits.recurrent;
  const kernels::LinearScanShape& scan = recurrent.scan;
  const bool by_kv_heads = !prefix.empty() && prefix != "linear_attn" && attends(traits) &&
                           (prefix == "conv" || std::ranges::count(attention_of_blocks(traits), false) != 0);
  if (by_kv_heads) {
    std::vector<std::int32_t> heads;
    for (const BlockTraits& block : traits.block) {
      heads.push_back(has_attention(block.mixer) ? static_cast<std::int32_t>(traits.kv_heads) : 0);
    }
    out.add("attention.head_count_kv", GgufArray::of<std::int32_t>(std::span<const std::int32_t>(heads)));
  } else {
    out.size("attention.head_count_kv", traits.kv_heads);
  }
  if (prefix.empty()) return;
  if (prefix == "conv") return out.size("shortconv.l_cache", recurrent.kernel);
  const bool per_channel = traits.architecture == Architecture::mamba;
  out.size("ssm.conv_kernel", recurrent.kernel);
  out.size("ssm.inner_size", scan.results());
  out.size("ssm.state_size", scan.keys);
  out.size("ssm.time_step_rank", per_channel ? recurrent.rank : scan.heads);
  if (!per_channel) out.size("ssm.group_count", scan.groups);
  if (!scan.delta && recurrent.norm_groups != scan.groups && recurrent.norm_groups != 0 && !per_channel)
    out.size(kNormGroupsKey, recurrent.norm_groups);
  if (prefix != "linear_attn") return;
  const std::vector<bool> attend = attention_of_blocks(traits);
  const std::size_t period = attention_period(traits);
  std::vector<bool> usual = all_but_every(period, traits.blocks);
  usual.flip();
  out.size("full_attention_interval", period);
  if (attend != usual) {
    std::vector<bool> recurs = attend;
    recurs.flip();
    out.flags("attention.recurrent_layers", recurs);
  }
  // Sections of positions in space and time, which are all alike in a text; llama.cpp needs them.
  constexpr std::array<std::int32_t, 4> kSections = {11, 11, 10, 0};
  if (traits.architecture != Architecture::qwen3_next) {
    out.add("rope.dimension_sections", GgufArray::of<std::int32_t>(std::span<const std::int32_t>(kSections)));
  }
}

void write_multipliers(const Traits& traits, MetadataWriter& out) {
  if (facts(traits.architecture).norms_around_zero) {
    if (traits.architecture == Architecture::gemma2 || traits.attention_cap != 0) {
      out.number("attn_logit_softcapping", static_cast<double>(traits.attention_cap));
    }
    if (traits.architecture == Architecture::gemma2 || traits.logit_cap != 0) {
      out.number("final_logit_softcapping", static_cast<double>(traits.logit_cap));
    }
    out.add("attention.scale", traits.attention_scale);
  } else if (has_multipliers(traits.architecture)) {
    out.add("attention.scale", traits.attention_scale);
    out.add("embedding_scale", traits.embedding_scale);
    out.add("residual_scale", traits.residual_scale);
    out.add("logit_scale", 1 / traits.logit_scale);
  } else if (traits.architecture == Architecture::cohere2) {
    out.add("logit_scale", traits.logit_scale);
  }
  if (facts(traits.architecture).parallel == Parallel::stated) out.add("use_parallel_residual", traits.parallel);
  if (traits.architecture == Architecture::falcon) out.add("tensor_data_layout", "jploski");
}

/// The numbers are those of llama.cpp.
void write_embeddings(const Traits& traits, MetadataWriter& out) {
  constexpr std::size_t kRank = 4;
  if (traits.architecture == Architecture::modernbert) {
    out.add(kActivationKey, std::string(name_in(kActivationNames, traits.activation, "gelu")));
  }
  if (traits.head.scores) {
    out.size("pooling_type", kRank);
  } else if (traits.pooling != Pooling::unknown) {
    out.size("pooling_type", static_cast<std::size_t>(traits.pooling));
  }
  const Head& head = traits.head;
  if (head.results == 0 || head.scores) return;
  const bool two = head.hidden != 0;
  out.size("dense_2_feat_in", traits.width);
  out.size("dense_2_feat_out", two ? head.hidden : head.results);
  if (!two) return;
  out.size("dense_3_feat_in", head.hidden);
  out.size("dense_3_feat_out", head.results);
}

void write_gemma3n(const Traits& traits, MetadataWriter& out) {
  out.size("altup.num_inputs", traits.streams);
  out.size("altup.active_idx", 0);
  std::vector<float> deviations;
  for (const BlockTraits& one : traits.block) {
    deviations.push_back(one.sparsity == 0 ? -std::numeric_limits<float>::infinity() : sparse_deviations(one.sparsity));
  }
  out.add("activation_sparsity_scale", GgufArray::of<float>(std::span<const float>(deviations)));
}

void write_gemma(const Traits& traits, MetadataWriter& out) {
  std::vector<std::size_t> kv_heads;
  for (std::size_t block = 0; block < traits.blocks; ++block) kv_heads.push_back(kv_heads_of(traits, block));
  out.sizes("attention.head_count_kv", kv_heads);
  if (traits.architecture == Architecture::gemma4) {
    out.size("attention.key_length_swa", window_head_values(traits));
    out.size("attention.value_length_swa", window_head_values(traits));
  } else {
    write_gemma3n(traits, out);
  }
  const auto shares = [](const BlockTraits& one) { return one.cache.has_value(); };
  out.size("attention.shared_kv_layers", static_cast<std::size_t>(std::ranges::count_if(traits.block, shares)));
  out.size("embedding_length_per_layer_input", traits.layer_values);
  // Even if there is none: llama.cpp takes one of 30 where the file is silent.
  out.number("final_logit_softcapping", static_cast<double>(traits.logit_cap));
}

void write_experts(const Traits& traits, MetadataWriter& out) {
  const ArchitectureFacts& row = facts(traits.architecture);
  const std::size_t width = expert_feed_forward(traits);
  if (width == 0) return;
  out.size("expert_count", traits.experts);
  out.size("expert_used_count", traits.experts_used);
  out.size("expert_feed_forward_length", width);
  if (traits.norm_expert_weights != row.norm_experts_in_gguf) {
    out.add("expert_weights_norm", traits.norm_expert_weights);
  }
  if (traits.expert_scores == ExpertScores::sigmoid) out.size("expert_gating_func", 2);
  if (row.one_branch) {
    out.add("expert_weights_scale", traits.expert_scale);
    out.size("expert_shared_feed_forward_length", traits.shared_feed_forward);
    out.size("expert_shared_count", traits.shared_feed_forward == 0 ? 0 : 1);
  } else if (row.states_routing) {
    out.size("leading_dense_block_count", first_experts(traits));
    if (traits.expert_scores == ExpertScores::softmax) out.size("expert_gating_func", 1);
    out.size("expert_shared_count", traits.shared_feed_forward / width);
    out.add("expert_weights_scale", traits.expert_scale);
  } else if (traits.shared_feed_forward != 0 && !traits.experts_beside) {
    out.size("expert_shared_feed_forward_length", traits.shared_feed_forward);
  }
  if (traits.expert_groups > 1) {
    out.size("expert_group_count", traits.expert_groups);
    out.size("expert_group_used_count", traits.expert_groups_used);
  }
}

}  // namespace

std::vector<GgufMetadata> traits_metadata(const Traits& traits, std::size_t dense) {
  MetadataWriter out(gguf_name(traits));
  out.size("vocab_size", traits.vocabulary);
  out.size("context_length", traits.context);
  out.size("embedding_length", traits.width);
  out.size("block_count", traits.blocks);
  const ArchitectureFacts& row = facts(traits.architecture);
  const bool gemma = row.shared_caches, differ = gemma || row.one_branch;
  std::vector<std::size_t> widths;
  for (const BlockTraits& one : traits.block) {
    widths.push_back(traits.experts_beside ? traits.shared_feed_forward : differ ? one.feed_forward : dense);
  }
  out.sizes("feed_forward_length", widths);
  out.size("attention.head_count", traits.heads);
  if (traits.latent != 0) {  // the cache has one head for all
    out.size("attention.head_count_kv", 1);
    out.size("attention.key_length", traits.latent + traits.rotary);
    out.size("attention.value_length", traits.latent);
    out.size("attention.key_length_mla", traits.head_values);
    out.size("attention.value_length_mla", traits.latent_values);
    out.size("attention.kv_lora_rank", traits.latent);
    if (traits.query_low != 0) out.size("attention.q_lora_rank", traits.query_low);
  } else {
    if (gemma) {
      write_gemma(traits, out);
    } else {
      write_mixers(traits, out);
    }
  }
  if (attends(traits) && traits.latent == 0) {
    out.size("attention.key_length", traits.head_values);
    out.size("attention.value_length", traits.head_values);
  }
  if (!traits.causal) out.add("attention.causal", false);
  write_embeddings(traits, out);
  out.number(traits.norm == NormKind::layer ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
             traits.norm_eps);
  // llama.cpp does not load the model without it, and reads it for blocks that predict further tokens only.
  if (traits.architecture == Architecture::nemotron_h) out.number("attention.layer_norm_epsilon", traits.norm_eps);
  if (traits.heads == 0) return out.take();
  write_rope(traits, out);
  write_windows(traits, out);
  write_multipliers(traits, out);
  write_experts(traits, out);
  if (traits.architecture == Architecture::granitemoehybrid) {
    out.add("rope.scaling.finetuned", traits.block.front().rope);
  } else if (!traits.learned_positions && rope_of_blocks(traits) != usual_rope(traits)) {
    out.flags("attention.rope_pattern", rope_of_blocks(traits));
  }
  return out.take();
}

std::vector<std::string> gguf_losses(const Traits& traits, const std::string& path) {
  const ArchitectureFacts& row = facts(traits.architecture);
  const auto refuse = [&](std::string_view what) {
    throw UnsupportedError(fmt::format("{}: GGUF cannot express a {} model {}", path, row.model_type, what));
  };
  const bool states_activation = traits.architecture == Architecture::modernbert;
  if (traits.activation != row.activation && !states_activation) refuse("with another activation than the usual one");
  if (row.adjacent_in_gguf && traits.rotary != traits.head_values) refuse("whose heads rotate only in part");
  if (row.latent && traits.rope_pairs != kernels::RopePairs::adjacent) refuse("whose rotated values are halves");
  if (traits.rope_scaling.scale_growth != 0 && traits.rope_scaling.attention_factor != 1) {
    refuse("with different mscale and mscale_all_dim");
  }
  if (traits.rope_scaling.kind == Kind::llama3 && row.gguf != "llama" && row.gguf != "granite") {
    refuse("with rope scaling of type llama3");
  }
  if (row.multipliers && traits.tied_output && traits.embedding_scale != traits.logit_scale) {
    refuse("whose output matrix is that of the embedding, with another multiplier");
  }
  const Head& head = traits.head;
  if (!head.scores &&
      (head.activation != kernels::Activation::linear || head.result_activation != kernels::Activation::linear)) {
    refuse("with an activation after its dense modules");
  }
  if (traits.architecture == Architecture::gemma2 && !traits.tied_output) refuse("with an output matrix of its own");
  const std::size_t window = window_of(traits);
  if (std::ranges::any_of(traits.block,
                          [&](const BlockTraits& one) { return one.window != 0 && one.window != window; })) {
    refuse("with windows of several sizes");
  }

  const kernels::LinearScanShape& scan = traits.recurrent.scan;
  if (scan.delta && scan.keys != scan.values) refuse("whose keys and values have different sizes");
  if (traits.recurrent.low_step > 0 || traits.recurrent.high_step < 1e30F) refuse("whose steps have limits");

  std::vector<std::string> notes;
  const std::size_t norms = traits.recurrent.norm_groups;
  if (!scan.delta && scan.groups > 1 && norms != scan.groups && norms != 0) {
    notes.push_back("results of scans have one norm, which is stated, but llama.cpp takes one for each group of heads");
  }
  if (window != 0 && row.full_period == 0 && window < traits.context) {
    notes.push_back(
        fmt::format("the sliding window of {} is stated, but llama.cpp ignores it for this architecture", window));
  }
  if (traits.architecture == Architecture::gemma2 && (window == 0 || !has_usual_windows(traits))) {
    notes.push_back("llama.cpp gives every other block a sliding window, whatever the file says");
  }
  if (traits.architecture == Architecture::gemma2 && (traits.attention_cap == 0 || traits.logit_cap == 0)) {
    notes.push_back("llama.cpp cannot run this architecture without soft caps");
  }
  if (traits.architecture == Architecture::gemma3 || traits.architecture == Architecture::embedding_gemma) {
    // llama.cpp goes by the number of blocks: the largest model alone has another scale.
    const auto heads = static_cast<double>(traits.heads), width = static_cast<double>(traits.width);
    const double usual =
        traits.blocks == 62 ? std::sqrt(heads / width) : static_cast<double>(usual_attention_scale(traits));
    if (std::abs(static_cast<double>(traits.attention_scale) - usual) > 1e-6 * usual) {
      notes.push_back("the scale of attention is stated, but llama.cpp takes that of the width of a head");
    }
  }
  if (traits.architecture == Architecture::gemma3n) {
    notes.push_back(
        "llama.cpp takes 4 streams, laurel layers of rank 64, 20 blocks with keys of their own and 10 with sparse "
        "gates, and needs keys in all blocks, whatever the file says");
  }
  if (traits.architecture == Architecture::exaone4 && window != 0 && traits.blocks != 64) {
    notes.push_back("windows are stated, but llama.cpp ignores them unless there are 64 blocks");
  }
  if (traits.architecture == Architecture::olmoe && traits.kv_heads != traits.heads) {
    notes.push_back("llama.cpp only loads this architecture with as many heads of keys as of queries");
  }
  if (row.latent && traits.query_low == 0 && traits.blocks != 26 && traits.blocks != 27) {
    notes.push_back("llama.cpp only loads models with uncompressed queries that have 26 or 27 blocks");
  }
  const std::size_t with_experts = first_experts(traits), last = traits.blocks - 1;
  if (row.one_branch) {
    if (with_experts <= last && dense_feed_forward(traits) != 0) {
      notes.push_back("llama.cpp cannot load a model of this architecture with both dense blocks and experts");
    }
  } else if (with_experts <= last && std::ranges::count(experts_of_blocks(traits), true) !=
                                         static_cast<std::ptrdiff_t>(traits.blocks - with_experts)) {
    refuse("with dense blocks between those with experts");
  }
  if (with_experts != 0 && with_experts <= last && !row.states_routing) refuse("with dense blocks before experts");
  if (row.multipliers && traits.multipliers != Multipliers()) {
    notes.push_back("multipliers become part of the weights, as llama.cpp has them; the way back does not part them");
  }
  if (!row.states_routing && traits.norm_expert_weights != row.norm_experts_in_gguf) {
    notes.push_back(traits.norm_expert_weights
                        ? "weights of the chosen experts sum to 1 here, which llama.cpp ignores for this architecture"
                        : "weights of the chosen experts do not sum to 1 here, which llama.cpp ignores for this "
                          "architecture");
  }
  if (!traits.learned_positions && rope_of_blocks(traits) != usual_rope(traits)) {
    notes.push_back(
        "the blocks without rotary embeddings are stated, but llama.cpp takes every fourth of smollm3 and none of "
        "others");
  }
  if (traits.rope_scaling.kind == Kind::yarn && !traits.rope_scaling.truncate) {
    notes.push_back("yarn without rounding ('truncate' false) is stated, but llama.cpp rounds");
  }
  return notes;
}

namespace {

/// llama.cpp needs as many tokens as the embedding has rows; models often reserve more rows.
void pad(Vocabulary& vocabulary, const Traits& traits, const std::string& path) {
  if (vocabulary.tokens.size() > traits.vocabulary) {
    throw FormatError(
        path, 0,
        fmt::format("the tokenizer has {} tokens, but vocab_size is {}", vocabulary.tokens.size(), traits.vocabulary));
  }
  while (vocabulary.tokens.size() < traits.vocabulary) {
    vocabulary.tokens.push_back({.text = fmt::format("[PAD{}]", vocabulary.tokens.size()), .type = TokenType::unused});
  }
}

void add_rope_factors(const Traits& traits, ModelRecipe& recipe) {
  std::vector<float> divisors = gguf_rope_factors(traits);
  if (divisors.empty()) return;
  auto made = std::make_shared<MadeTensor>();
  made->values = std::move(divisors);
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

/// Tokens beyond the table of inputs of layers have those of the first one; in GGUF the table says so.
void extend_layer_inputs(const Traits& traits, ModelRecipe& recipe) {
  if (traits.layer_values == 0) return;
  const std::string name = matrix_name(traits, Role::layer_embedding, 0);
  TensorRecipe& table = *std::ranges::find(recipe.tensors, name, &TensorRecipe::name);
  const SourceRows first{table.parts.front().tensor, table.parts.front().first_row, 1};
  table.parts.insert(table.parts.end(), traits.vocabulary - traits.layer_vocabulary, first);
  table.shape = Shape{traits.vocabulary, table.shape.last()};
}

}  // namespace

std::vector<float> gguf_rope_factors(const Traits& traits) {
  if (traits.rope_scaling.kind == Kind::llama3) return llama3_divisors(main_rope(traits));
  // Readers of gemma4 want them in any case.
  return traits.architecture == Architecture::gemma4 ? proportional_divisors(main_rope(traits)) : std::vector<float>{};
}

std::vector<GgufMetadata> gguf_settings(const Traits& traits, const files::JsonFile& config, std::string title) {
  std::vector<GgufMetadata> settings = {{"general.architecture", std::string(gguf_name(traits))},
                                        {"general.type", "model"},
                                        {"general.name", std::move(title)}};
  const auto dense = config.root().find("intermediate_size");
  const std::size_t dense_size =
      dense && dense->kind() == files::JsonKind::number
          ? static_cast<std::size_t>(dense->integral("intermediate_size", 1, kMaxFeedForward))
          : traits.block.front().feed_forward;  // 0 where there is none
  for (GgufMetadata& entry : traits_metadata(traits, dense_size)) settings.push_back(std::move(entry));
  if (traits.architecture == Architecture::mistral) {
    settings.push_back({std::string(kModelTypeKey), std::string(name(traits.architecture))});
  }
  if (traits.token_types != 0) {
    settings.push_back({"tokenizer.ggml.token_type_count", static_cast<std::uint32_t>(traits.token_types)});
  }
  if (!traits.has_output && traits.causal) {
    settings.push_back({fmt::format("{}.{}", kOwnPrefix, kHasOutput), false});
  }
  if (traits.rope_scaling.kind == Kind::llama3) {
    for (const Llama3Field& field : kLlama3Fields) {
      settings.push_back(
          {fmt::format("{}.{}", kLlama3Prefix, field.key), static_cast<float>(traits.rope_scaling.*field.value)});
    }
  }
  return settings;
}

ModelRecipe gguf_recipe(const files::TensorFile& file) {
  const files::HuggingFaceFolder& folder = *file.folder();
  const Traits traits = read_traits(file);
  const DecoderTensors tensors(file, traits);
  ModelRecipe recipe;
  recipe.target = FileForm::gguf;
  recipe.notes = gguf_losses(traits, file.path());
  recipe.tensors = decoder_recipes(traits, tensors, usual_naming(traits, true));
  add_rope_factors(traits, recipe);
  extend_layer_inputs(traits, recipe);
  if (std::string note = encoder_note(tensors); !note.empty()) recipe.notes.push_back(std::move(note));
  for (const std::string& unused : tensors.unused()) {
    recipe.notes.push_back(
        fmt::format("tensor '{}' is left out: a {} has no use for it", unused, name(traits.architecture)));
  }

  const std::filesystem::path path = std::filesystem::absolute(folder.path()).lexically_normal();
  const std::string title = (path.has_filename() ? path : path.parent_path()).filename().string();
  recipe.gguf_metadata = gguf_settings(traits, folder.config(), title);

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
