// What gemma 3n and 4 have besides other decoders: heads of two widths, blocks that attend to the keys and values of
// earlier ones, inputs of blocks besides the stream, several streams, experts beside a dense layer.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "models/architectures.h"
#include "models/fields.h"
#include "models/traits_reading.h"

namespace imago::models {

namespace {

/// The last blocks attend to the keys and values of the last block before them that has the same kind of window.
void share_caches(const Fields& fields, Traits& traits, std::size_t shared) {
  const std::size_t first = traits.blocks - shared;
  for (std::size_t block = first; block < traits.blocks; ++block) {
    std::size_t source = first;
    while (source > 0 && (traits.block[source - 1].window != 0) != (traits.block[block].window != 0)) --source;
    if (source == 0) {
      fields.fail(fmt::format("block {} has no keys of its own, and no block of its kind before block {} has some",
                              block, first));
    }
    traits.block[block].cache = source - 1;
  }
}

/// Sets the heads of blocks from `values`, which must be the same in all blocks of a kind.
void set_heads(const Fields& fields, Traits& traits, const std::vector<std::size_t>& values) {
  const auto of_kind = [&](bool windowed) {
    for (std::size_t block = 0; block < traits.blocks; ++block) {
      if ((traits.block[block].window != 0) == windowed) return values[block];
    }
    return traits.head_values;
  };
  const std::size_t full = of_kind(false), windowed = of_kind(true);
  traits.head_values = full;
  for (std::size_t block = 0; block < traits.blocks; ++block) {
    const bool has_window = traits.block[block].window != 0;
    if (values[block] != (has_window ? windowed : full)) {
      fields.refuse(
          fmt::format("heads of {} values in block {}, and of others in blocks of its kind, are not supported",
                      values[block], block));
    }
    if (has_window && windowed != full) traits.block[block].head_values = windowed;
  }
}

std::size_t count_of(const ConfigFields& config, std::string_view key, std::int64_t high, std::size_t fallback) {
  const auto value = config.find(key);
  return value ? static_cast<std::size_t>(value->integer(key, 0, high)) : fallback;
}

/// Experts beside the dense layers, in all blocks. REQUIRES: their numbers are set, and the widths of the dense layers.
void add_experts(const Fields& fields, Traits& traits, std::size_t width) {
  traits.experts_beside = true;
  traits.shared_feed_forward = traits.block.front().feed_forward;
  for (BlockTraits& one : traits.block) {
    if (one.feed_forward != traits.shared_feed_forward) {
      fields.refuse("experts beside dense layers of several widths are not supported");
    }
    one.experts = true;
    one.feed_forward = width;
  }
}

void read_config_gemma4(const ConfigFields& config, Traits& traits) {
  const std::size_t global = config.size("global_head_dim", kMaxHeadValues, 512);
  const std::optional<ConfigFields> own = config.object("per_layer_config");
  const bool keys_are_values = config.flag("attention_k_eq_v", false);
  std::vector<std::size_t> values(traits.blocks, traits.head_values);
  for (std::size_t block = 0; block < traits.blocks; ++block) {
    BlockTraits& one = traits.block[block];
    std::size_t kv_heads = traits.kv_heads;
    if (own) {
      if (const std::optional<ConfigFields> its = own->object(std::to_string(block))) {
        values[block] = its->size("head_dim", kMaxHeadValues, traits.head_values);
        kv_heads = its->size("num_key_value_heads", kMaxHeads, traits.kv_heads);
      }
    } else if (one.window == 0) {
      values[block] = global;
      if (keys_are_values) kv_heads = config.size("num_global_key_value_heads", kMaxHeads, traits.kv_heads);
    }
    if (kv_heads != traits.kv_heads) one.kv_heads = kv_heads;
    one.keys_are_values = keys_are_values && one.window == 0;
  }
  set_heads(config, traits, values);
  if (config.flag("use_double_wide_mlp", false)) {
    for (BlockTraits& one : traits.block) one.feed_forward *= one.cache ? 2 : 1;
  }
  if (config.flag("enable_moe_block", false)) {
    traits.experts = config.size("num_experts", kMaxExperts);
    traits.experts_used = config.size("top_k_experts", kMaxExperts);
    add_experts(config, traits, config.size("moe_intermediate_size", kMaxFeedForward));
  }
}

void read_gguf_gemma4(const GgufFields& fields, Traits& traits) {
  const std::size_t windowed = fields.size("attention.key_length_swa", kMaxHeadValues, traits.head_values);
  if (fields.size("attention.value_length_swa", kMaxHeadValues, windowed) != windowed) {
    fields.refuse("keys and values of different widths in blocks with a window are not supported");
  }
  const auto kv_heads = fields.sizes("attention.head_count_kv", kMaxHeads, traits.blocks);
  traits.kv_heads = kv_heads.front();
  for (std::size_t block = 0; block < traits.blocks; ++block) {
    BlockTraits& one = traits.block[block];
    if (one.window != 0 && windowed != traits.head_values) one.head_values = windowed;
    if (kv_heads[block] != traits.kv_heads) one.kv_heads = kv_heads[block];
    const std::string value = fmt::format("blk.{}.attn_v.weight", block);
    one.keys_are_values = !one.cache && fields.file().find_tensor(value) == nullptr;
  }
  if (traits.experts == 0) return;
  traits.experts_used = fields.count("expert_used_count", kMaxExperts, 0);
  add_experts(fields, traits, fields.size("expert_feed_forward_length", kMaxFeedForward));
}

void read_config_gemma3n(const ConfigFields& config, Traits& traits) {
  traits.streams = config.size("altup_num_inputs", kMaxStreams, 4);
  if (traits.streams < 2) config.fail("altup_num_inputs must be 2 or more");
  if (count_of(config, "altup_active_idx", kMaxStreams, 0) != 0) {
    config.refuse("'altup_active_idx' other than 0 is not supported");
  }
  if (!config.flag("altup_correct_scale", true)) {
    config.refuse("'altup_correct_scale' is false, which is not supported");
  }
  traits.laurel_rank = config.size("laurel_rank", kMaxWidth, 64);
  constexpr std::string_view key = "activation_sparsity_pattern";
  constexpr std::size_t kSparse = 10;  // blocks, the first ones, of a model with more
  constexpr double kShare = 0.95;
  const auto list = config.find(key);
  for (std::size_t block = 0; !list && traits.blocks > kSparse && block < kSparse; ++block) {
    traits.block[block].sparsity = kShare;
  }
  if (!list) return;
  for_each_block(*list, key, traits.blocks, [&](std::size_t block, const files::JsonValue& entry) {
    const double share = entry.number(key);
    if (!(share >= 0 && share < 1))
      entry.fail(fmt::format("an entry of {} must be from 0 to below 1, not {}", key, share));
    traits.block[block].sparsity = share;
  });
}

void read_gguf_gemma3n(const GgufFields& fields, Traits& traits) {
  traits.streams = fields.size("altup.num_inputs", kMaxStreams);
  if (traits.streams < 2) fields.fail(fmt::format("'{}' must be 2 or more", fields.full("altup.num_inputs")));
  if (fields.count("altup.active_idx", kMaxStreams, 0) != 0) {
    fields.refuse(fmt::format("'{}' other than 0 is not supported", fields.full("altup.active_idx")));
  }
  const GgufTensor& laurel = fields.file().require_tensor("blk.0.laurel_l.weight");
  traits.laurel_rank = laurel.shape.rank() == 2 ? laurel.shape[0] : 0;
  if (traits.laurel_rank == 0 || traits.laurel_rank > static_cast<std::size_t>(kMaxWidth)) {
    fields.fail(
        fmt::format("tensor 'blk.0.laurel_l.weight' has {} rows; it can have 1 to {}", traits.laurel_rank, kMaxWidth));
  }
  const std::string key = fields.full("activation_sparsity_scale");
  const GgufArray& deviations = fields.file().require_array(key, GgufType::f32);
  if (deviations.size() < traits.blocks) {
    fields.fail(fmt::format("'{}' has {} entries for {} blocks", key, deviations.size(), traits.blocks));
  }
  const std::vector<float> values = deviations.values<float>();
  for (std::size_t block = 0; block < traits.blocks; ++block) {
    traits.block[block].sparsity = sparse_share(values[block]);
    if (!(traits.block[block].sparsity < 1))
      fields.fail(fmt::format("'{}' of block {} is {}", key, block, values[block]));
  }
}

/// The share of a normal distribution below so many deviations.
double share_below(double deviations) { return std::erfc(-deviations / std::sqrt(2.0)) / 2; }

void set_scales(Traits& traits) {
  traits.attention_scale = 1;
  traits.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(traits.width)));
}

}  // namespace

float sparse_deviations(double share) {
  double low = -40, high = 40;  // where the share is 0 and 1 in float64
  for (int i = 0; i < 64; ++i) {
    const double middle = (low + high) / 2;
    (share_below(middle) < share ? low : high) = middle;
  }
  return static_cast<float>(low);
}

double sparse_share(float deviations) {
  const double share = share_below(static_cast<double>(deviations));
  for (double scale = 10; scale < 1e7; scale *= 10) {
    const double rounded = std::round(share * scale) / scale;
    // Files have them from arithmetic in float32.
    if (std::abs(sparse_deviations(rounded) - deviations) <= 1e-5F * std::abs(deviations)) return rounded;
  }
  return share;
}

void read_config_gemma(const ConfigFields& config, Traits& traits) {
  const bool three = traits.architecture == Architecture::gemma3n;
  const auto others = static_cast<std::int64_t>(traits.blocks) - 1;
  share_caches(
      config, traits,
      count_of(config, "num_kv_shared_layers", others, three ? std::min<std::size_t>(15, traits.blocks - 1) : 0));
  traits.layer_values = count_of(config, "hidden_size_per_layer_input", kMaxWidth, 256);
  if (three) {
    read_config_gemma3n(config, traits);
    if (traits.layer_values == 0) config.refuse("'hidden_size_per_layer_input' of 0 is not supported");
  } else {
    read_config_gemma4(config, traits);
  }
  if (traits.layer_values != 0) {
    const std::size_t usual = three ? 262144 : traits.vocabulary;
    const auto high = static_cast<std::int64_t>(traits.vocabulary);
    traits.layer_vocabulary = config.size("vocab_size_per_layer_input", high, std::min(usual, traits.vocabulary));
  }
  set_scales(traits);
  if (three && !config.states("final_logit_softcapping")) traits.logit_cap = 30;
  if (config.has("final_logit_softcapping")) {
    traits.logit_cap = static_cast<float>(config.positive("final_logit_softcapping", kMaxFactor));
  }
}

void read_gguf_gemma(const GgufFields& fields, Traits& traits) {
  const auto others = static_cast<std::int64_t>(traits.blocks) - 1;
  share_caches(fields, traits, fields.count("attention.shared_kv_layers", others, 0));
  traits.layer_values = fields.count("embedding_length_per_layer_input", kMaxWidth, 0);
  if (traits.layer_values != 0) traits.layer_vocabulary = traits.vocabulary;
  if (traits.architecture == Architecture::gemma3n) {
    read_gguf_gemma3n(fields, traits);
    if (traits.layer_values == 0)
      fields.fail(fmt::format("'{}' is missing", fields.full("embedding_length_per_layer_input")));
  } else {
    read_gguf_gemma4(fields, traits);
  }
  set_scales(traits);
  traits.logit_cap = static_cast<float>(fields.number("final_logit_softcapping", kMaxFactor, 0));
}

}  // namespace imago::models
