#include "models/traits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "imago/error.h"
#include "models/architectures.h"
#include "models/rope.h"
#include "models/summary.h"
#include "models/tensor_layout.h"
#include "models/traits_reading.h"

namespace imago::models {

std::size_t head_values_of(const Traits& traits, std::size_t block) {
  const std::size_t own = traits.block[block].head_values;
  return own == 0 ? traits.head_values : own;
}
std::size_t kv_heads_of(const Traits& traits, std::size_t block) {
  const std::size_t own = traits.block[block].kv_heads;
  return own == 0 ? traits.kv_heads : own;
}
std::size_t window_head_values(const Traits& traits) {
  const auto found = std::ranges::find_if(traits.block, [](const BlockTraits& one) { return one.window != 0; });
  return found == traits.block.end() || found->head_values == 0 ? traits.head_values : found->head_values;
}

namespace {

void check_attention(const Traits& traits, const Fields& fields, const TraitKeys& keys) {
  for (std::size_t block = 0; block < traits.blocks; ++block) {
    const std::size_t kv_heads = kv_heads_of(traits, block);
    if (kv_heads <= traits.heads && traits.heads % kv_heads == 0) continue;
    fields.fail(
        fmt::format("{} is {}, which is not a multiple of {} = {}", keys.heads, traits.heads, keys.kv_heads, kv_heads));
  }
  const bool turns = traits.rotary != 0 && traits.rotary % 2 == 0 && traits.rotary <= traits.head_values;
  if (!traits.learned_positions && !turns) {
    fields.fail(
        fmt::format("{} gives {} values of a head that turn; it must be an even number from 2 to the {} of a head",
                    keys.rotary, traits.rotary, traits.head_values));
  }
  const std::size_t windows_turn = traits.window_rope ? traits.window_rope->rotary : 2;
  if (windows_turn == 0 || windows_turn % 2 != 0 || windows_turn > window_head_values(traits)) {
    fields.fail(fmt::format("{} values of a head turn in blocks with a window; it must be an even number from 2 to {}",
                            windows_turn, window_head_values(traits)));
  }
}

void check_experts(const Traits& traits, const Fields& fields, const TraitKeys& keys) {
  if (traits.experts_used > traits.experts || (traits.experts > 0 && traits.experts_used == 0)) {
    fields.fail(fmt::format("{} is {}; it must be from 1 to {} = {}", keys.experts_used, traits.experts_used,
                            keys.experts, traits.experts));
  }
  const std::size_t groups = traits.expert_groups, groups_used = traits.expert_groups_used;
  if (traits.experts % std::max<std::size_t>(1, groups) != 0 ||
      (traits.two_judge_group && groups > 1 && traits.experts < 2 * groups)) {
    fields.fail(fmt::format("{} is {}, which does not divide {} = {} into groups of {}", keys.groups, groups,
                            keys.experts, traits.experts, traits.two_judge_group ? "two and more" : "one size"));
  }
  if (groups_used == 0 || groups_used > groups) {
    fields.fail(
        fmt::format("{} is {}; it must be from 1 to {} = {}", keys.groups_used, groups_used, keys.groups, groups));
  }
  if (traits.experts_used > traits.experts / groups * groups_used) {
    fields.fail(fmt::format("{} is {}, and {} groups of {} experts are chosen from", keys.experts_used,
                            traits.experts_used, groups_used, traits.experts / groups));
  }
}

}  // namespace

void check_traits(const Traits& traits, const Fields& fields, const TraitKeys& keys) {
  if (attends(traits)) check_attention(traits, fields, keys);
  check_experts(traits, fields, keys);
}

bool attends(const Traits& traits) {
  return std::ranges::any_of(traits.block, [](const BlockTraits& block) { return has_attention(block.mixer); });
}

std::vector<bool> attention_of_blocks(const Traits& traits) {
  std::vector<bool> flags;
  for (const BlockTraits& block : traits.block) flags.push_back(has_attention(block.mixer));
  return flags;
}

std::size_t attention_period(const Traits& traits) {
  const std::vector<bool> flags = attention_of_blocks(traits);
  const auto first = std::ranges::find(flags, true);
  return first == flags.end() ? 1 : static_cast<std::size_t>(first - flags.begin()) + 1;
}

kernels::Activation read_activation(const Fields& fields, std::string_view key, kernels::Activation fallback) {
  if (!fields.has(key)) return fallback;
  const std::string text = fields.text(key);
  std::string known;
  for (const auto& [activation, name] : kActivationNames) {
    if (name == text) return activation;
    known.append(known.empty() ? "" : ", ").append(name);
  }
  fields.refuse(fmt::format("activation '{}' ('{}') is not supported; known are {}", text, key, known));
}

std::vector<bool> all_but_every(std::size_t period, std::size_t blocks) {
  std::vector<bool> flags(blocks, true);
  for (std::size_t block = period; period != 0 && block <= blocks; block += period) flags[block - 1] = false;
  return flags;
}

std::vector<bool> all_but_some(const ArchitectureFacts& row, std::size_t period, std::size_t blocks) {
  std::vector<bool> flags = all_but_every(period, blocks);
  if (!row.full_first) return flags;
  flags.assign(blocks, true);
  for (std::size_t block = 0; period != 0 && block < blocks; block += period) flags[block] = false;
  return flags;
}

std::vector<bool> windowed(const Traits& traits) {
  std::vector<bool> flags;
  for (const BlockTraits& block : traits.block) flags.push_back(block.window != 0);
  return flags;
}

std::vector<bool> rope_of_blocks(const Traits& traits) {
  std::vector<bool> flags;
  for (const BlockTraits& block : traits.block) flags.push_back(block.rope);
  return flags;
}

std::vector<std::size_t> window_of_blocks(const Traits& traits) {
  std::vector<std::size_t> windows;
  for (const BlockTraits& block : traits.block) windows.push_back(block.window);
  return windows;
}

std::vector<bool> experts_of_blocks(const Traits& traits) {
  std::vector<bool> flags;
  for (const BlockTraits& block : traits.block) flags.push_back(block.experts);
  return flags;
}

std::size_t first_experts(const Traits& traits) {
  return static_cast<std::size_t>(std::ranges::find(traits.block, true, &BlockTraits::experts) - traits.block.begin());
}

std::size_t dense_feed_forward(const Traits& traits) {
  const auto found =
      std::ranges::find_if(traits.block, [](const BlockTraits& one) { return !one.experts && one.feed_forward != 0; });
  return found == traits.block.end() ? 0 : found->feed_forward;
}

std::size_t expert_feed_forward(const Traits& traits) {
  const std::size_t first = first_experts(traits);
  return first == traits.blocks ? 0 : traits.block[first].feed_forward;
}

void set_rope(Traits& traits, const std::vector<bool>& flags) {
  for (std::size_t i = 0; i < traits.block.size(); ++i) traits.block[i].rope = flags[i];
}

void set_windows(Traits& traits, const std::vector<std::size_t>& windows) {
  for (std::size_t i = 0; i < traits.block.size(); ++i) traits.block[i].window = windows[i];
}

std::vector<bool> usual_rope(const Traits& traits) {
  const ArchitectureFacts& row = facts(traits.architecture);
  std::vector<bool> windows = windowed(traits);
  if (row.full_without_rope && std::ranges::find(windows, true) != windows.end()) return windows;
  return all_but_every(row.no_rope_period, traits.blocks);
}

float scale_growth(const RopeScaling& scaling) noexcept {
  const double grown = scaling.scale_growth * (yarn_attention_factor(scaling.factor) - 1) + 1;
  return static_cast<float>(grown * grown);
}

float usual_attention_scale(const Traits& traits) noexcept {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(traits.head_values)));
}

namespace {

/// Traits of a folder: its config.json, and what only the other files tell.
Traits folder_traits(const files::TensorFile& file, const files::HuggingFaceFolder& folder) {
  Traits traits = config_traits(folder.config());
  // A class without a head for language ("Qwen3Model") may still be saved with one.
  const bool bare = traits.has_output && !traits.tied_output && !file.tensors().empty() &&
                    find_weight(file, "lm_head.weight") == nullptr && names_bare_model(folder.config());
  if (bare) traits.has_output = false;
  if (traits.pooling == Pooling::unknown && folder.pooling()) traits.pooling = read_pooling(*folder.pooling());
  if (!traits.head.scores) read_dense(folder.dense_modules(), traits);
  return traits;
}

}  // namespace

Traits read_traits(const files::TensorFile& file) {
  if (const files::HuggingFaceFolder* folder = file.folder()) {
    const ConfigFields config(folder->config().root(), folder->config().path());
    const std::string type = text_fields(config).text("model_type");
    if (find_model_type(type) == nullptr) config.refuse(describe_unknown(file, type));
    return folder_traits(file, *folder);
  }
  if (const GgufFile* gguf = file.gguf()) {
    const std::string_view type = gguf->architecture();
    if (find_gguf_architecture(type) == nullptr) {
      throw UnsupportedError(fmt::format("{}: {}", file.path(), describe_unknown(file, type)));
    }
    return gguf_traits(*gguf);
  }
  throw UnsupportedError(
      fmt::format("{}: a {} file holds tensors only; a language model is a Hugging Face folder (config.json beside the "
                  "weights) or a GGUF file",
                  file.path(), name(file.form())));
}

}  // namespace imago::models
