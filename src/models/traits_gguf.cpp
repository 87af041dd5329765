// Traits from the metadata of a GGUF file, read as llama.cpp reads them; where its loader ignores what a file says
// (windows of mistral and phi3, weights of experts that do not sum to 1), the file is believed.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "imago/error.h"
#include "models/architectures.h"
#include "models/fields.h"
#include "models/mixers.h"
#include "models/rope.h"
#include "models/traits_reading.h"

namespace imago::models {

namespace {

using Kind = RopeScaling::Kind;

Architecture read_architecture(const GgufFile& file) {
  const std::string_view name = file.architecture();
  const ArchitectureFacts* row = find_gguf_architecture(name);
  if (row == nullptr) {
    throw UnsupportedError(fmt::format("{}: models of architecture '{}' are not supported; known are {}", file.path(),
                                       name, known_gguf_architectures()));
  }
  const GgufFields fields(file, name);
  if (row->architecture == Architecture::deepseek_v2) {
    // The first of two, which differ in the choice of experts: only the second has biases for it. transformers 5 saves
    // that one without the setting that llama.cpp's converter makes the key of.
    const bool biased = std::ranges::any_of(
        file.tensors(), [](const GgufTensor& tensor) { return tensor.name.ends_with(".exp_probs_b.bias"); });
    const bool sigmoid = fields.count("expert_gating_func", 255, biased ? 2 : 1) == 2;
    return sigmoid ? Architecture::deepseek_v3 : row->architecture;
  }
  if (row->architecture == Architecture::olmo2 && fields.count("attention.sliding_window", kMaxContext, 0) > 0) {
    return Architecture::olmo3;
  }
  if (row->architecture != Architecture::llama) return row->architecture;
  if (fields.count("expert_count", kMaxExperts, 0) > 0) return Architecture::mixtral;
  if (fields.count("attention.sliding_window", kMaxContext, 0) > 0) return Architecture::mistral;
  const GgufValue* model_type = file.find(kModelTypeKey);
  return model_type != nullptr && model_type->string() == "mistral" ? Architecture::mistral : Architecture::llama;
}

std::size_t read_vocabulary_size(const GgufFields& fields) {
  if (fields.has("vocab_size")) return fields.size("vocab_size", kMaxVocabulary);
  const GgufFile& file = fields.file();
  std::size_t count = 0;
  if (file.find("tokenizer.ggml.tokens") != nullptr) {
    count = file.require_array("tokenizer.ggml.tokens", GgufType::string).size();
  } else {
    const GgufTensor& embedding = file.require_tensor("token_embd.weight");
    count = embedding.shape.rank() == 0 ? 0 : embedding.shape[0];
  }
  if (count == 0 || count > static_cast<std::size_t>(kMaxVocabulary)) {
    fields.fail(fmt::format("the vocabulary must have from 1 to {} tokens, not {}", kMaxVocabulary, count));
  }
  return count;
}

void read_common(const GgufFields& fields, Traits& traits) {
  const bool layer_norm = traits.norm == NormKind::layer;
  traits.norm_eps =
      fields.positive(layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", kMaxEps);
  traits.attention_scale = usual_attention_scale(traits);
  traits.vocabulary = read_vocabulary_size(fields);
}

/// Sizes of heads as the model has them are apart from those of the cache, in older files the only ones.
void read_latent(const GgufFields& fields, Traits& traits) {
  traits.latent = fields.size("attention.kv_lora_rank", kMaxWidth);
  traits.query_low = fields.size("attention.q_lora_rank", kMaxWidth, 0);
  traits.head_values = fields.size("attention.key_length_mla", kMaxHeadValues, traits.head_values);
  const std::size_t older = fields.size("attention.value_length", kMaxHeadValues, traits.head_values);
  traits.latent_values = fields.size("attention.value_length_mla", kMaxHeadValues, older);
  traits.kv_heads = traits.heads;
  read_common(fields, traits);
}

void read_sizes(const GgufFields& fields, Traits& traits) {
  traits.blocks = fields.size("block_count", kMaxBlocks);
  // Blocks that predict further tokens follow the others; they are not run.
  const std::size_t further = fields.count("nextn_predict_layers", kMaxBlocks, 0);
  if (further >= traits.blocks) {
    fields.fail(fmt::format("'{}' is {} of {} blocks", fields.full("nextn_predict_layers"), further, traits.blocks));
  }
  traits.blocks -= further;
  traits.block.assign(traits.blocks, {.rope = !traits.learned_positions});
  traits.width = fields.size("embedding_length", kMaxWidth);
  traits.context = fields.size("context_length", kMaxContext);
  const Architecture architecture = traits.architecture;
  if (architecture == Architecture::mamba || architecture == Architecture::mamba2) {
    read_common(fields, traits);
    traits.attention_scale = 1;  // there is none
    return;
  }
  traits.heads = fields.size("attention.head_count", kMaxHeads);
  traits.kv_heads = traits.heads;
  if (fields.has("attention.head_count_kv")) {
    // One number, or one for each block, of which those without attention have none.
    const bool recurs = !facts(architecture).mixer_prefix.empty();
    traits.kv_heads = facts(architecture).shared_caches
                          ? fields.sizes("attention.head_count_kv", kMaxHeads, traits.blocks).front()
                      : recurs ? std::ranges::max(fields.counts("attention.head_count_kv", kMaxHeads, traits.blocks))
                               : fields.size("attention.head_count_kv", kMaxHeads);
    if (traits.kv_heads == 0) fields.fail(fmt::format("'{}' is 0", fields.full("attention.head_count_kv")));
  }
  if (!fields.has("attention.key_length") && traits.width % traits.heads != 0) {
    fields.fail(fmt::format("'{}' is {}, which is not a multiple of '{}' = {}, and there is no '{}'",
                            fields.full("embedding_length"), traits.width, fields.full("attention.head_count"),
                            traits.heads, fields.full("attention.key_length")));
  }
  traits.head_values = fields.size("attention.key_length", kMaxHeadValues, traits.width / traits.heads);
  if (facts(traits.architecture).latent) return read_latent(fields, traits);
  const std::size_t value_length = fields.size("attention.value_length", kMaxHeadValues, traits.head_values);
  if (value_length != traits.head_values) {
    fields.refuse(fmt::format("keys of {} and values of {} values per head are not supported; they must be the same",
                              traits.head_values, value_length));
  }
  read_common(fields, traits);
}

void read_rope_scaling(const GgufFields& fields, Traits& traits) {
  const std::string type = fields.text("rope.scaling.type", "linear");
  double factor = fields.number("rope.scaling.factor", kMaxFactor, 0);
  if (factor == 0) factor = fields.number("rope.scale_linear", kMaxFactor, 0);
  if (factor == 0) factor = 1;
  if (type == "linear") {
    if (factor != 1) traits.rope_scaling = {.kind = Kind::linear, .factor = factor};
  } else if (type == "yarn") {
    RopeScaling scaling{.kind = Kind::yarn, .factor = factor};
    scaling.original_context =
        static_cast<double>(fields.size("rope.scaling.original_context_length", kMaxContext, traits.context));
    scaling.beta_fast = fields.positive("rope.scaling.yarn_beta_fast", kMaxFactor, scaling.beta_fast);
    scaling.beta_slow = fields.positive("rope.scaling.yarn_beta_slow", kMaxFactor, scaling.beta_slow);
    scaling.truncate = fields.flag("rope.scaling.yarn_truncate", facts(traits.architecture).yarn_truncates);
    const double growth = fields.number("rope.scaling.yarn_log_multiplier", kMaxFactor, 0) * 10;
    if (traits.latent != 0 && growth != 0) {
      scaling.scale_growth = growth;
      scaling.attention_factor = 1;  // all models of the kind have one factor for scores and none for angles
      traits.rope_scaling = scaling;
      traits.attention_scale *= scale_growth(scaling);
      return;
    }
    const double grown_by = fields.positive("rope.scaling.yarn_log_multiplier", kMaxFactor, 0);
    if (traits.architecture == Architecture::ministral3 && grown_by != 0) {
      const double usual = yarn_attention_factor(factor);
      scaling.attention_factor = usual / (grown_by * (usual - 1) + 1);
    }
    // llama.cpp multiplies this one with the usual factor.
    const double on_top = fields.positive("rope.scaling.attn_factor", kMaxFactor, 1);
    if (on_top != 1) {
      const double whole = on_top * yarn_attention_factor(factor);
      const double stated = fields.positive("rope.scaling.yarn_attn_factor", kMaxFactor, 0);
      // The loader ignores the second key, and other programs write 1 whatever they mean.
      scaling.attention_factor = std::abs(stated - whole) < 1e-5 * whole ? stated : whole;
    }
    traits.rope_scaling = scaling;
  } else if (type != "none") {
    fields.refuse(fmt::format("rope scaling of type '{}' is not supported; known are none, linear and yarn", type));
  }
  for (const char* tensor : {"rope_factors_long.weight", "rope_factors_short.weight"}) {
    if (fields.file().find_tensor(tensor) != nullptr) {
      fields.refuse(
          fmt::format("tensor '{}': rope scaling of type 'longrope' (two sets of factors, for short and long texts) is "
                      "not supported",
                      tensor));
    }
  }
}

void read_rope(const GgufFields& fields, Traits& traits) {
  if (traits.learned_positions) return;
  const ArchitectureFacts& row = facts(traits.architecture);
  traits.rope_base = fields.positive("rope.freq_base", kMaxRopeBase, 1e4);
  traits.rotary = fields.size("rope.dimension_count", kMaxHeadValues, traits.head_values);
  if (row.adjacent_in_gguf) traits.rope_pairs = kernels::RopePairs::adjacent;
  read_rope_scaling(fields, traits);
  traits.query_growth = fields.number("attention.temperature_scale", kMaxFactor, 0);
  if (traits.query_growth != 0 && traits.rope_scaling.original_context == 0) {
    fields.fail(fmt::format("'{}' needs '{}', which is missing", fields.full("attention.temperature_scale"),
                            fields.full("rope.scaling.original_context_length")));
  }
  if (row.two_ropes) {
    const double usual = row.window_rope_base == 0 ? traits.rope_base : row.window_rope_base;
    const std::size_t rotary =
        fields.size("rope.dimension_count_swa", kMaxHeadValues, std::min(traits.rotary, window_head_values(traits)));
    traits.window_rope = {fields.positive("rope.freq_base_swa", kMaxRopeBase, usual), rotary, {}};
    if (traits.window_rope == main_rope(traits)) traits.window_rope.reset();
  }
  set_rope(traits, usual_rope(traits));
  const bool granite =
      traits.architecture == Architecture::granite || traits.architecture == Architecture::granitemoehybrid;
  if (granite && !fields.flag("rope.scaling.finetuned", true)) {
    set_rope(traits, std::vector<bool>(traits.blocks, false));  // this is how converters say it
  }
  if (const auto pattern = fields.flags("attention.rope_pattern", traits.blocks)) set_rope(traits, *pattern);
}

void read_windows(const GgufFields& fields, Traits& traits) {
  const bool gemma2 = traits.architecture == Architecture::gemma2;
  const std::size_t window = fields.count("attention.sliding_window", kMaxContext, gemma2 ? 4096 : 0);
  if (window == 0) return;
  auto flags = fields.flags("attention.sliding_window_pattern", traits.blocks);
  if (!flags) {
    const ArchitectureFacts& row = facts(traits.architecture);
    const std::size_t period = fields.count("attention.sliding_window_pattern", kMaxBlocks, row.full_period);
    flags = all_but_some(row, period, traits.blocks);
  }
  for (std::size_t block = 0; block < traits.blocks; ++block) {
    if ((*flags)[block]) traits.block[block].window = window;
  }
}

/// How the branches of a block stand to each other; which norms they have shows in the tensors.
void read_branches(const GgufFields& fields, Traits& traits) {
  const ArchitectureFacts& row = facts(traits.architecture);
  const auto in_file = [&](const char* name) { return fields.file().find_tensor(name) != nullptr; };
  if (in_file("blk.0.attn_q_norm.weight") && row.query_norm == QueryNorm::none) {
    fields.refuse(fmt::format("norms of queries in a model of architecture '{}' are not supported", row.gguf));
  }
  if (traits.architecture == Architecture::gpt_neox) {
    traits.parallel = fields.flag("use_parallel_residual", true);
  } else if (traits.architecture == Architecture::stablelm) {
    traits.parallel = traits.shared_norm = !in_file("blk.0.ffn_norm.weight");
  } else if (traits.architecture == Architecture::falcon) {
    traits.shared_norm = !in_file("blk.0.attn_norm_2.weight");
  } else if ((traits.architecture == Architecture::hunyuan_v1_dense || traits.architecture == Architecture::glm4_moe) &&
             !in_file("blk.0.attn_q_norm.weight")) {
    traits.query_norm = QueryNorm::none;
  }
}

void read_multipliers(const GgufFields& fields, Traits& traits) {
  traits.attention_scale =
      static_cast<float>(fields.multiplier("attention.scale", static_cast<double>(traits.attention_scale)));
  if (facts(traits.architecture).norms_around_zero) {
    const bool capped = traits.architecture == Architecture::gemma2;
    // The 27B model alone scales by the width of a head as the model has it; converters do not write which.
    if (!fields.has("attention.scale") && traits.blocks == (capped ? 46U : 62U)) {
      const std::size_t share = traits.width / traits.heads;
      traits.attention_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(share)));
    }
    traits.attention_cap = static_cast<float>(fields.number("attn_logit_softcapping", kMaxFactor, capped ? 50 : 0));
    traits.logit_cap = static_cast<float>(fields.number("final_logit_softcapping", kMaxFactor, capped ? 30 : 0));
    traits.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(traits.width)));
  } else if (has_multipliers(traits.architecture)) {
    traits.embedding_scale = static_cast<float>(fields.multiplier("embedding_scale", 1));
    traits.residual_scale = static_cast<float>(fields.multiplier("residual_scale", 1));
    traits.logit_scale = static_cast<float>(1 / fields.multiplier("logit_scale", 1));
  } else if (traits.architecture == Architecture::cohere2) {
    traits.logit_scale = static_cast<float>(fields.multiplier("logit_scale", 1));
  }
}

/// Rows of a tensor; 0 if there is none.
std::size_t rows_of(const GgufFields& fields, std::string_view name, std::int64_t high) {
  const GgufTensor* const tensor = fields.file().find_tensor(name);
  if (tensor == nullptr) return 0;
  const std::size_t rows = tensor->shape.rank() < 2 ? 1 : tensor->shape[0];
  if (rows == 0 || rows > static_cast<std::size_t>(high)) {
    fields.fail(fmt::format("tensor '{}' has {} rows; it can have 1 to {}", name, rows, high));
  }
  return rows;
}

/// What is said about embeddings: the numbers of pooling are those of llama.cpp.
void read_embeddings(const GgufFields& fields, Traits& traits) {
  constexpr std::size_t kMean = 1, kCls = 2, kLast = 3, kRank = 4;
  const std::size_t pooling = fields.count("pooling_type", 255, 0);
  traits.pooling = pooling == kMean   ? Pooling::mean
                   : pooling == kCls  ? Pooling::cls
                   : pooling == kLast ? Pooling::last
                                      : Pooling::unknown;
  Head& head = traits.head;
  const std::size_t first = rows_of(fields, "dense_2.weight", kMaxFeedForward);
  const std::size_t second = rows_of(fields, "dense_3.weight", kMaxFeedForward);
  head.results = second == 0 ? first : second;
  head.hidden = second == 0 ? 0 : first;
  if (!facts(traits.architecture).encoder) return;
  traits.token_types = rows_of(fields, "token_types.weight", kMaxTokenTypes);
  const bool modern = traits.architecture == Architecture::modernbert;
  if (modern) {
    traits.block.front().attention_norm = fields.file().find_tensor("blk.0.attn_norm.weight") != nullptr;
    traits.activation = read_activation(fields, kActivationKey, traits.activation);
  }
  const std::size_t classes = rows_of(fields, "cls.output.weight", kMaxClasses);
  if (classes == 0 || head.results != 0) return;
  head.results = classes;
  head.scores = true;
  head.hidden = rows_of(fields, "cls.weight", kMaxFeedForward);
  head.norm = rows_of(fields, "cls.norm.weight", kMaxFeedForward) != 0;
  head.activation = modern ? kernels::Activation::gelu_erf : kernels::Activation::tanh;
  if (pooling == kRank || pooling == 0) traits.pooling = modern ? Pooling::mean : Pooling::cls;
}

}  // namespace

Traits gguf_traits(const GgufFile& file) {
  const Architecture architecture = read_architecture(file);
  const GgufFields fields(file, file.architecture());
  Traits traits = traits_of(architecture);
  if (fields.flag("attention.causal", traits.causal) != traits.causal) {
    fields.refuse(fmt::format("'{}' is {}, which is not supported for this architecture",
                              fields.full("attention.causal"), !traits.causal));
  }
  read_sizes(fields, traits);
  if (traits.heads != 0) read_gguf_feed_forward(fields, traits);
  read_gguf_mixers(fields, traits);
  read_windows(fields, traits);
  if (facts(architecture).shared_caches) read_gguf_gemma(fields, traits);
  if (traits.heads != 0) read_rope(fields, traits);
  read_multipliers(fields, traits);
  read_branches(fields, traits);
  traits.has_output = traits.has_output && GgufFields(file, kOwnPrefix).flag(kHasOutput, true);
  traits.tied_output = traits.has_output && file.find_tensor("output.weight") == nullptr;
  read_embeddings(fields, traits);
  check_traits(traits, fields,
               {fields.full("attention.head_count"), fields.full("attention.head_count_kv"),
                fields.full("rope.dimension_count"), fields.full("expert_count"), fields.full("expert_used_count"),
                fields.full("expert_group_count"), fields.full("expert_group_used_count")});
  return traits;
}

}  // namespace imago::models
