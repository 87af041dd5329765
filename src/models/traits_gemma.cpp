// What gemma 4 has besides other decoders: heads of two widths, blocks that attend to the keys and values of earlier
// ones, and inputs of blocks besides the stream.

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

}  // namespace

void read_config_gemma4(const ConfigFields& config, Traits& traits) {
  if (config.flag("enable_moe_block", false)) {
    config.refuse("'enable_moe_block' is true: experts beside a dense feed-forward layer are not supported");
  }
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
  const std::size_t shared = count_of(config, "num_kv_shared_layers", static_cast<std::int64_t>(traits.blocks) - 1, 0);
  share_caches(config, traits, shared);
  if (config.flag("use_double_wide_mlp", false)) {
    for (BlockTraits& one : traits.block) one.feed_forward *= one.cache ? 2 : 1;
  }
  traits.layer_values = count_of(config, "hidden_size_per_layer_input", kMaxWidth, 256);
  if (traits.layer_values != 0) {
    traits.layer_vocabulary = config.size("vocab_size_per_layer_input", kMaxVocabulary, traits.vocabulary);
  }
  traits.attention_scale = 1;
  traits.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(traits.width)));
  if (config.has("final_logit_softcapping")) {
    traits.logit_cap = static_cast<float>(config.positive("final_logit_softcapping", kMaxFactor));
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
  }
  const std::size_t shared =
      fields.count("attention.shared_kv_layers", static_cast<std::int64_t>(traits.blocks) - 1, 0);
  share_caches(fields, traits, shared);
  for (std::size_t block = 0; block < traits.blocks; ++block) {
    BlockTraits& one = traits.block[block];
    const std::string value = fmt::format("blk.{}.attn_v.weight", block);
    one.keys_are_values = !one.cache && fields.file().find_tensor(value) == nullptr;
  }
  traits.layer_values = fields.count("embedding_length_per_layer_input", kMaxWidth, 0);
  if (traits.layer_values != 0) traits.layer_vocabulary = traits.vocabulary;
  traits.attention_scale = 1;
  traits.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(traits.width)));
  traits.logit_cap = static_cast<float>(fields.number("final_logit_softcapping", kMaxFactor, 0));
}

}  // namespace imago::models
