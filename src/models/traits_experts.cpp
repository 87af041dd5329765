// Feed-forward layers and their experts, from config.json and from the metadata of GGUF files.

#include <fmt/format.h>

#include <algorithm>

#include "models/architectures.h"
#include "models/traits_reading.h"

namespace imago::models {

namespace {

/// Marks the blocks with experts and gives each block its width.
void set_widths(Traits& traits, const std::vector<bool>& experts, std::size_t dense, std::size_t expert) {
  for (std::size_t i = 0; i < traits.blocks; ++i) {
    traits.block[i].experts = experts[i];
    traits.block[i].feed_forward = experts[i] ? expert : dense;
  }
}

std::vector<bool> all_but_first(std::size_t dense, std::size_t blocks) {
  std::vector<bool> flags(blocks, true);
  std::fill_n(flags.begin(), std::min(dense, blocks), false);
  return flags;
}

/// Which blocks of a config.json have experts.
std::vector<bool> config_blocks(const ConfigFields& config, const Traits& traits) {
  const std::string_view key = config.either("first_k_dense_replace", "num_dense_layers");
  const auto first = config.find(key);
  std::vector<bool> flags = all_but_first(
      first ? static_cast<std::size_t>(first->integral(key, 0, kMaxBlocks)) : std::size_t{0}, traits.blocks);
  const std::size_t step = config.size("decoder_sparse_step", kMaxBlocks, 1);
  for (std::size_t i = 0; i < traits.blocks; ++i) flags[i] = flags[i] && (i + 1) % step == 0;
  if (const auto list = config.find("mlp_only_layers")) {
    for (const files::JsonMember member : list->elements("mlp_only_layers")) {
      const auto block = static_cast<std::size_t>(member.value.integral("an entry of mlp_only_layers", 0, kMaxBlocks));
      if (block < traits.blocks) flags[block] = false;
    }
  }
  return flags;
}

/// Blocks of one branch have no feed-forward layer beside a mixer.
void drop_beside_mixers(Traits& traits) {
  if (!facts(traits.architecture).one_branch) return;
  for (BlockTraits& block : traits.block) {
    if (block.mixer != Mixer::none) block.feed_forward = 0;
  }
}

std::size_t config_shared(const ConfigFields& config, std::size_t expert) {
  if (config.has("moe_shared_expert_intermediate_size")) {
    return config.size("moe_shared_expert_intermediate_size", kMaxFeedForward);
  }
  if (const auto count = config.find("n_shared_experts")) {
    return expert * static_cast<std::size_t>(count->integral("n_shared_experts", 0, kMaxExperts));
  }
  const std::string_view key = config.either("shared_expert_intermediate_size", "shared_intermediate_size");
  const auto width = config.find(key);
  return width ? static_cast<std::size_t>(width->integral(key, 0, kMaxFeedForward)) : 0;
}

/// What GGUF files say of experts besides their width.
void read_gguf_experts(const GgufFields& fields, std::size_t expert, Traits& traits) {
  if (traits.experts == 0) return;
  if (fields.has("moe_latent_size")) fields.refuse("experts of another width than the model's are not supported");
  traits.experts_used = fields.count("expert_used_count", kMaxExperts, 0);
  const ArchitectureFacts& row = facts(traits.architecture);
  traits.shared_feed_forward = fields.count("expert_shared_feed_forward_length", kMaxFeedForward, 0);
  if (traits.shared_feed_forward == 0) {
    traits.shared_feed_forward = expert * fields.count("expert_shared_count", kMaxExperts, 0);
  }
  traits.expert_groups = std::max<std::size_t>(1, fields.count("expert_group_count", kMaxExperts, 1));
  const std::size_t groups_used = fields.count("expert_group_used_count", kMaxExperts, 0);
  traits.expert_groups_used = groups_used == 0 ? traits.expert_groups : groups_used;
  traits.norm_expert_weights = fields.flag("expert_weights_norm", row.norm_experts_in_gguf);
  traits.expert_scale = static_cast<float>(fields.multiplier("expert_weights_scale", 1));
  switch (fields.count("expert_gating_func", 255, 0)) {
    case 0: break;  // what the architecture has
    case 1: traits.expert_scores = ExpertScores::softmax; break;
    case 2: traits.expert_scores = ExpertScores::sigmoid; break;
    case 3:  // the softmax of the chosen products alone
      traits.expert_scores = ExpertScores::softmax;
      traits.norm_expert_weights = true;
      break;
    default:
      fields.refuse(fmt::format("'{}' other than 1, softmax, and 2, sigmoid, is not supported",
                                fields.full("expert_gating_func")));
  }
}

}  // namespace

std::string_view experts_key(const ConfigFields& config) {
  for (const std::string_view key : {"num_experts", "n_routed_experts"}) {
    if (config.has(key)) return key;
  }
  return "num_local_experts";
}

void set_feed_forward(Traits& traits, std::size_t width) {
  for (BlockTraits& block : traits.block) block.feed_forward = width;
}

void read_config_feed_forward(const ConfigFields& config, Traits& traits) {
  const ArchitectureFacts& row = facts(traits.architecture);
  if (traits.architecture == Architecture::falcon) {
    return set_feed_forward(traits, config.size("ffn_hidden_size", kMaxFeedForward, 4 * traits.width));
  }
  if (!row.experts || (row.one_branch && first_experts(traits) == traits.blocks)) {
    const std::string_view key = config.either("block_ff_dim", "intermediate_size");
    const auto widths = config.find(key);
    if (widths && widths->kind() == files::JsonKind::array) {
      for_each_block(*widths, key, traits.blocks, [&](std::size_t block, const files::JsonValue& width) {
        traits.block[block].feed_forward = static_cast<std::size_t>(width.integral(key, 1, kMaxFeedForward));
      });
    } else {
      set_feed_forward(traits, config.size(key, kMaxFeedForward));
    }
    return drop_beside_mixers(traits);
  }
  traits.experts = config.size(experts_key(config), kMaxExperts);
  traits.experts_used = config.size("num_experts_per_tok", kMaxExperts);
  const std::vector<bool> blocks = row.one_branch ? experts_of_blocks(traits) : config_blocks(config, traits);
  const bool all = std::ranges::find(blocks, false) == blocks.end();
  if (std::ranges::find(blocks, true) == blocks.end()) config.refuse("a mixture of experts of which no block has any");
  const std::size_t expert =
      config.size(row.own_expert_width ? "moe_intermediate_size" : "intermediate_size", kMaxFeedForward);
  set_widths(traits, blocks, all ? 0 : config.size("intermediate_size", kMaxFeedForward), expert);
  drop_beside_mixers(traits);
  if (config.has("moe_latent_size")) config.refuse("'moe_latent_size' (experts of another width) is not supported");
  traits.shared_feed_forward = config_shared(config, expert);
  traits.expert_groups = config.size("n_group", kMaxExperts, 1);
  traits.expert_groups_used = config.size("topk_group", kMaxExperts, traits.expert_groups);
  traits.norm_expert_weights = config.flag("norm_topk_prob", row.norm_experts);
  traits.expert_scale = static_cast<float>(config.positive("routed_scaling_factor", kMaxFactor, 1));
}

void read_gguf_feed_forward(const GgufFields& fields, Traits& traits) {
  const ArchitectureFacts& row = facts(traits.architecture);
  traits.experts = fields.count("expert_count", kMaxExperts, 0);
  if (!row.experts || row.one_branch) {
    if (!row.experts && traits.experts > 0 && !row.experts_beside) {
      fields.refuse(fmt::format("experts in a model of architecture '{}' are not supported", row.gguf));
    }
    const auto widths = row.one_branch ? fields.counts("feed_forward_length", kMaxFeedForward, traits.blocks)
                                       : fields.sizes("feed_forward_length", kMaxFeedForward, traits.blocks);
    for (std::size_t block = 0; block < traits.blocks; ++block) {
      traits.block[block].feed_forward = widths[block];
      traits.block[block].experts =
          row.one_branch && traits.experts > 0 &&
          fields.file().find_tensor(fmt::format("blk.{}.ffn_gate_inp.weight", block)) != nullptr;
    }
    if (row.one_branch) read_gguf_experts(fields, expert_feed_forward(traits), traits);
    return;
  }
  traits.experts_used = fields.count("expert_used_count", kMaxExperts, 0);
  if (traits.experts == 0) fields.fail(fmt::format("'{}' is missing or 0", fields.full("expert_count")));
  const std::size_t dense = fields.size("feed_forward_length", kMaxFeedForward, 0);
  std::size_t expert = fields.size("expert_feed_forward_length", kMaxFeedForward, 0);
  if (expert == 0) {
    expert = fields.size("feed_forward_length", kMaxFeedForward);
    // Older files of this architecture state the size of all chosen experts together.
    if (row.own_expert_width && traits.experts_used > 0)
      expert = std::max<std::size_t>(1, expert / traits.experts_used);
  }
  const std::vector<bool> blocks =
      all_but_first(fields.count("leading_dense_block_count", kMaxBlocks, 0), traits.blocks);
  if (!blocks.front() && dense == 0) fields.fail(fmt::format("'{}' is missing", fields.full("feed_forward_length")));
  set_widths(traits, blocks, dense, expert);
  read_gguf_experts(fields, expert, traits);
}

}  // namespace imago::models
