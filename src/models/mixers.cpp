#include "models/mixers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "models/architectures.h"
#include "models/traits_reading.h"

namespace imago::models {

namespace {

using backend::Role;

struct MixerName {
  Role role;
  std::string_view folder, gguf;
};

constexpr MixerName kMixerNames[] = {
    {Role::taps, "conv1d.weight", "ssm_conv1d.weight"},
    {Role::taps_bias, "conv1d.bias", "ssm_conv1d.bias"},
    {Role::step_bias, "dt_bias", "ssm_dt.bias"},
    {Role::decay_rate, "A_log", "ssm_a"},
    {Role::skip, "D", "ssm_d"},
    {Role::scan_norm, "norm.weight", "ssm_norm.weight"},
    {Role::scan_output, "out_proj.weight", "ssm_out.weight"},
};
constexpr MixerName kShortConvNames[] = {
    {Role::input_gate, "in_proj.weight", "shortconv.in_proj.weight"},
    {Role::taps, "conv.weight", "shortconv.conv.weight"},
    {Role::scan_output, "out_proj.weight", "shortconv.out_proj.weight"},
};
constexpr MixerName kDeltaNames[] = {
    {Role::channels, "in_proj_qkv.weight", "attn_qkv.weight"},
    {Role::output_gate, "in_proj_z.weight", "attn_gate.weight"},
    {Role::input_gate, "in_proj_b.weight", "ssm_beta.weight"},
    {Role::step, "in_proj_a.weight", "ssm_alpha.weight"},
};
constexpr MixerName kMambaNames[] = {
    {Role::channels, "in_proj.weight", "ssm_in.weight"},
    {Role::step_low, "x_proj.weight", "ssm_x.weight"},
    {Role::step, "dt_proj.weight", "ssm_dt.weight"},
    {Role::step_bias, "dt_proj.bias", "ssm_dt.bias"},
};
constexpr MixerName kMamba2Names[] = {{Role::output_gate, "in_proj.weight", "ssm_in.weight"}};

std::span<const MixerName> own_names(Mixer mixer) noexcept {
  switch (mixer) {
    case Mixer::attention:
    case Mixer::none: return {};
    case Mixer::short_conv: return kShortConvNames;
    case Mixer::delta_rule: return kDeltaNames;
    case Mixer::mamba: return kMambaNames;
    case Mixer::mamba2:
    case Mixer::mamba2_beside_attention: return kMamba2Names;
  }
  return {};
}

/// What the entry of a block in a list of config.json says of it.
void set_type(const ConfigFields& config, std::string_view key, const std::string& type, Mixer recurrent,
              bool one_branch, BlockTraits& block) {
  if (type == "conv" || type == "linear_attention" || type == "mamba") {
    block.mixer = recurrent;
  } else if (one_branch && (type == "mlp" || type == "moe")) {
    block.mixer = Mixer::none;
    block.experts = type == "moe";
  } else if (type != "full_attention" && type != "attention") {
    config.refuse(fmt::format("blocks of type '{}' in {} are not supported", type, key));
  }
}

/// Gives each block the mixer of its entry in a list of config.json.
void read_types(const ConfigFields& config, std::string_view key, Mixer recurrent, Traits& traits) {
  const auto list = config.find(key);
  if (!list) config.fail(fmt::format("'{}' is missing", key));
  const auto elements = list->elements(key);
  if (elements.size() != traits.blocks) {
    list->fail(fmt::format("{} has {} entries for {} blocks", key, elements.size(), traits.blocks));
  }
  std::size_t block = 0;
  for (const files::JsonMember member : elements) {
    set_type(config, key, member.value.string("an entry of " + std::string(key)), recurrent, false,
             traits.block[block++]);
  }
}

void set_mixer(Traits& traits, Mixer mixer) {
  for (BlockTraits& block : traits.block) block.mixer = mixer;
}

/// Blocks without heads of keys are recurrent.
void set_by_kv_heads(const GgufFields& fields, Mixer recurrent, Traits& traits) {
  const std::vector<std::size_t> heads = fields.counts("attention.head_count_kv", kMaxHeads, traits.blocks);
  for (std::size_t i = 0; i < traits.blocks; ++i) {
    if (heads[i] == 0) traits.block[i].mixer = recurrent;
  }
}

/// Blocks of one branch with a feed-forward layer have no mixer.
void set_branches(const GgufFields& fields, Traits& traits) {
  for (std::size_t i = 0; i < traits.blocks; ++i) {
    BlockTraits& block = traits.block[i];
    if (block.feed_forward == 0) continue;
    if (has_attention(block.mixer)) {
      fields.refuse(fmt::format("block {} with attention and a feed-forward layer is not supported", i));
    }
    block.mixer = Mixer::none;
  }
}

void refuse_flag(const ConfigFields& config, std::string_view key) {
  if (config.flag(key, false)) config.refuse(fmt::format("'{}' is true, which is not supported", key));
}

void read_lfm2(const ConfigFields& config, Traits& traits) {
  read_types(config, "layer_types", Mixer::short_conv, traits);
  traits.recurrent.kernel = config.size("conv_L_cache", kernels::kMaxTaps, 3);
  refuse_flag(config, "conv_bias");
  if (traits.architecture == Architecture::lfm2 && config.flag("block_auto_adjust_ff_dim", false)) {
    // Two thirds, stretched, and rounded up to a multiple.
    const std::size_t third = 2 * traits.block.front().feed_forward / 3;
    const double stretch = config.positive("block_ffn_dim_multiplier", kMaxFactor, 1);
    const auto wanted = static_cast<std::size_t>(std::min(stretch * static_cast<double>(third), 1.0 * kMaxFeedForward));
    const std::size_t multiple = config.size("block_multiple_of", kMaxFeedForward, 256);
    set_feed_forward(traits, std::max<std::size_t>(1, (wanted + multiple - 1) / multiple) * multiple);
  }
}

void read_delta_net(const ConfigFields& config, Traits& traits) {
  if (config.has("layer_types")) {
    read_types(config, "layer_types", Mixer::delta_rule, traits);
  } else {
    const std::size_t period = config.size("full_attention_interval", kMaxBlocks, 4);
    for (std::size_t i = 0; i < traits.blocks; ++i) {
      if ((i + 1) % period != 0) traits.block[i].mixer = Mixer::delta_rule;
    }
  }
  const bool fused = traits.architecture == Architecture::qwen3_next;
  traits.recurrent = {.kernel = config.size("linear_conv_kernel_dim", kernels::kMaxTaps, 4),
                      .scan = {.heads = config.size("linear_num_value_heads", kMaxHeads, 32),
                               .groups = config.size("linear_num_key_heads", kMaxHeads, 16),
                               .keys = config.size("linear_key_head_dim", kMaxHeadValues, 128),
                               .values = config.size("linear_value_head_dim", kMaxHeadValues, 128),
                               .delta = true,
                               .grouped = fused},
                      .log_rates = true};
  traits.norm_offset = 1;
  traits.shared_router = traits.shared_feed_forward != 0;
}

void read_mamba(const ConfigFields& config, Traits& traits) {
  set_mixer(traits, Mixer::mamba);
  const std::size_t inner = config.has("intermediate_size") ? config.size("intermediate_size", kMaxFeedForward)
                                                            : traits.width * config.size("expand", kMaxHeads, 2);
  const auto rank = config.find("time_step_rank");
  const bool automatic = !rank || rank->kind() == files::JsonKind::string;
  traits.recurrent = {
      .kernel = config.size("conv_kernel", kernels::kMaxTaps, 4),
      .scan = {.heads = inner, .groups = 1, .keys = config.size("state_size", kMaxHeadValues, 16), .values = 1},
      .rank = automatic ? (traits.width + 15) / 16 : config.size("time_step_rank", kMaxWidth),
      .log_rates = true};
  refuse_flag(config, "use_bias");
}

/// The limits of the sizes of steps; infinity is what most files have.
void read_step_limits(const ConfigFields& config, RecurrentTraits& recurrent) {
  const auto list = config.find("time_step_limit");
  if (!list) return;
  const auto limits = list->elements("time_step_limit");
  if (limits.size() != 2) list->fail("time_step_limit must be two numbers");
  std::size_t i = 0;
  for (const files::JsonMember member : limits) {
    if (member.value.kind() == files::JsonKind::number) {
      const double limit = member.value.number("an entry of time_step_limit");
      (i == 0 ? recurrent.low_step : recurrent.high_step) = static_cast<float>(std::clamp(limit, 0.0, 1e30));
    }
    ++i;
  }
}

/// mamba2 under its own keys, or with "mamba_" before them in hybrids.
void read_mamba2(const ConfigFields& config, Traits& traits) {
  const auto either = [&](std::string_view own, std::string_view other, std::string_view third, std::int64_t high,
                          std::size_t fallback) {
    for (const std::string_view key : {own, other, third}) {
      if (!key.empty() && config.has(key)) return config.size(key, high);
    }
    return fallback;
  };
  RecurrentTraits& recurrent = traits.recurrent;
  recurrent.kernel = either("mamba_d_conv", "conv_kernel", "", kernels::kMaxTaps, 4);
  recurrent.scan = {.heads = either("mamba_n_heads", "mamba_num_heads", "num_heads", kMaxHeads, 128),
                    .groups = either("mamba_n_groups", "n_groups", "", kMaxHeads, 8),
                    .keys = either("mamba_d_state", "ssm_state_size", "state_size", kMaxHeadValues, 128),
                    .values = either("mamba_d_head", "mamba_head_dim", "head_dim", kMaxHeadValues, 64)};
  // transformers norms the results of mamba2 as a whole.
  recurrent.norm_groups = traits.architecture == Architecture::mamba2 ? 1 : recurrent.scan.groups;
  recurrent.log_rates = true;
  read_step_limits(config, recurrent);
  for (const std::string_view key : {"use_bias", "mamba_proj_bias", "projectors_bias"}) refuse_flag(config, key);
}

/// Numbers in a list of config.json; what it does not have stays.
template <std::size_t kCount>
std::array<float, kCount> multipliers(const ConfigFields& config, std::string_view key) {
  std::array<float, kCount> made;
  made.fill(1);
  const auto list = config.find(key);
  if (!list) return made;
  const auto elements = list->elements(key);
  if (elements.size() != kCount) list->fail(fmt::format("{} must be {} numbers", key, kCount));
  std::size_t i = 0;
  for (const files::JsonMember member : elements) {
    const double factor = member.value.number(fmt::format("an entry of {}", key));
    if (!(std::abs(factor) >= 1 / kMaxFactor && std::abs(factor) <= kMaxFactor)) {
      list->fail(fmt::format("{} has {}, which is not from 1 / {} to {}", key, factor, kMaxFactor, kMaxFactor));
    }
    made[i++] = static_cast<float>(factor);
  }
  return made;
}

void read_falcon_h1(const ConfigFields& config, Traits& traits) {
  set_mixer(traits, Mixer::mamba2_beside_attention);
  RecurrentTraits& recurrent = traits.recurrent;
  const std::size_t inner = config.size("mamba_d_ssm", kMaxFeedForward, recurrent.scan.results());
  if (inner != recurrent.scan.results()) {
    config.fail(fmt::format("mamba_d_ssm is {}, and {} heads of {} values are {}", inner, recurrent.scan.heads,
                            recurrent.scan.values, recurrent.scan.results()));
  }
  if (!config.flag("mamba_rms_norm", false)) {
    recurrent.norm_groups = 0;
  } else if (config.flag("mamba_norm_before_gate", true)) {
    config.refuse("'mamba_norm_before_gate' is true, which is not supported");
  }
  refuse_flag(config, "attention_bias");
  const auto factor = [&](std::string_view key) { return static_cast<float>(config.multiplier(key, 1)); };
  const auto [gate, down] = multipliers<2>(config, "mlp_multipliers");
  traits.multipliers = {.attention_in = factor("attention_in_multiplier"),
                        .key = factor("key_multiplier"),
                        .attention_out = factor("attention_out_multiplier"),
                        .scan_in = factor("ssm_in_multiplier"),
                        .scan_out = factor("ssm_out_multiplier"),
                        .scan = multipliers<5>(config, "ssm_multipliers"),
                        .gate = gate,
                        .down = down};
}

/// What the values of a channel of mamba2 are multiplied by: values, keys and queries differ.
float channel_factor(const Traits& traits, std::size_t channel) {
  const kernels::LinearScanShape& scan = traits.recurrent.scan;
  const std::size_t part = channel < scan.results() ? 1 : channel < scan.results() + scan.groups * scan.keys ? 2 : 3;
  return traits.multipliers.scan_in * traits.multipliers.scan[part];
}

/// Where channel `row` of all queries, all keys and all values is among grouped ones.
std::size_t channel_of_row(const kernels::LinearScanShape& scan, std::size_t row) {
  if (!scan.grouped) return row;
  const std::size_t all_keys = scan.groups * scan.keys, group_values = scan.heads / scan.groups * scan.values;
  const std::size_t group_channels = 2 * scan.keys + group_values;
  if (row < 2 * all_keys) {
    const std::size_t part = row / all_keys, within = row % all_keys;
    return within / scan.keys * group_channels + part * scan.keys + within % scan.keys;
  }
  const std::size_t value = row - 2 * all_keys;
  return value / group_values * group_channels + 2 * scan.keys + value % group_values;
}

void check_heads(const Traits& traits, const Fields& fields) {
  const kernels::LinearScanShape& scan = traits.recurrent.scan;
  if (scan.groups != 0 && scan.heads % scan.groups != 0) {
    fields.fail(fmt::format("{} heads of a scan cannot share the keys of {}", scan.heads, scan.groups));
  }
}

}  // namespace

std::string mixer_name(const Traits& traits, bool gguf, Role role) {
  const auto recurs =
      std::ranges::find_if(traits.block, [](const BlockTraits& block) { return is_recurrent(block.mixer); });
  if (recurs == traits.block.end()) return {};
  for (const std::span<const MixerName> names : {own_names(recurs->mixer), std::span<const MixerName>(kMixerNames)}) {
    const auto found = std::ranges::find(names, role, &MixerName::role);
    if (found == names.end()) continue;
    if (gguf) return std::string(found->gguf);
    return fmt::format("{}.{}", facts(traits.architecture).mixer_prefix, found->folder);
  }
  return {};
}

void read_config_branches(const ConfigFields& config, Traits& traits) {
  std::vector<std::string> types;
  if (config.has("hybrid_override_pattern")) {  // as it was before there were lists
    constexpr std::pair<char, std::string_view> kLetters[] = {
        {'M', "mamba"}, {'*', "attention"}, {'-', "mlp"}, {'E', "moe"}};
    for (const char letter : config.text("hybrid_override_pattern")) {
      const auto* const found = std::ranges::find(kLetters, letter, &std::pair<char, std::string_view>::first);
      types.emplace_back(found != std::end(kLetters) ? found->second : std::string_view(&letter, 1));
    }
  } else {
    const std::string_view key = config.either("layers_block_type", "layer_types");
    const auto list = config.find(key);
    if (!list) config.fail(fmt::format("'{}' is missing", key));
    for (const files::JsonMember member : list->elements(key)) {
      types.push_back(member.value.string("an entry of " + std::string(key)));
    }
  }
  if (types.empty() || types.size() > static_cast<std::size_t>(kMaxBlocks)) {
    config.fail(fmt::format("there are types of {} blocks; there can be 1 to {}", types.size(), kMaxBlocks));
  }
  traits.blocks = types.size();
  traits.block.assign(traits.blocks, {});
  for (std::size_t i = 0; i < types.size(); ++i) {
    set_type(config, "layers_block_type", types[i], Mixer::mamba2, true, traits.block[i]);
  }
}

void read_gguf_mixers(const GgufFields& fields, Traits& traits) {
  const std::string_view prefix = facts(traits.architecture).mixer_prefix;
  if (prefix.empty()) return;
  RecurrentTraits& recurrent = traits.recurrent;
  if (prefix == "conv") {
    recurrent.kernel = fields.size("shortconv.l_cache", kernels::kMaxTaps);
    return set_by_kv_heads(fields, Mixer::short_conv, traits);
  }
  recurrent.kernel = fields.size("ssm.conv_kernel", kernels::kMaxTaps);
  const std::size_t inner = fields.size("ssm.inner_size", kMaxFeedForward);
  const std::size_t states = fields.size("ssm.state_size", kMaxHeadValues);
  const std::size_t rank = fields.size("ssm.time_step_rank", kMaxWidth);
  if (traits.architecture == Architecture::mamba) {
    if (fields.flag("ssm.dt_b_c_rms", false)) fields.refuse("norms of what a scan reads are not supported");
    set_mixer(traits, Mixer::mamba);
    recurrent.scan = {.heads = inner, .groups = 1, .keys = states, .values = 1};
    recurrent.rank = rank;
    return;
  }
  if (inner % rank != 0) {
    fields.fail(fmt::format("'{}' is {}, which is not a multiple of '{}' = {}", fields.full("ssm.inner_size"), inner,
                            fields.full("ssm.time_step_rank"), rank));
  }
  recurrent.scan = {
      .heads = rank, .groups = fields.size("ssm.group_count", kMaxHeads), .keys = states, .values = inner / rank};
  if (prefix == "linear_attn") {
    recurrent.scan.delta = true;
    recurrent.scan.tiled = traits.architecture != Architecture::qwen3_next;
    recurrent.scan.grouped = fields.file().find_tensor("blk.0.ssm_in.weight") != nullptr;
    traits.shared_router = traits.shared_feed_forward != 0;
    const auto flags = fields.flags("attention.recurrent_layers", traits.blocks);
    const std::size_t period = fields.size("full_attention_interval", kMaxBlocks, 4);
    for (std::size_t i = 0; i < traits.blocks; ++i) {
      if (flags ? (*flags)[i] : (i + 1) % period != 0) traits.block[i].mixer = Mixer::delta_rule;
    }
  } else {
    recurrent.norm_groups = fields.size(kNormGroupsKey, kMaxHeads, recurrent.scan.groups);
    if (recurrent.scan.results() % recurrent.norm_groups != 0) {
      fields.fail(fmt::format("'{}' does not divide the {} results of a scan", fields.full(kNormGroupsKey),
                              recurrent.scan.results()));
    }
    if (traits.architecture == Architecture::falcon_h1) {
      set_mixer(traits, Mixer::mamba2_beside_attention);
      if (fields.file().find_tensor("blk.0.ssm_norm.weight") == nullptr) recurrent.norm_groups = 0;
    } else if (traits.heads != 0) {
      set_by_kv_heads(fields, Mixer::mamba2, traits);
    } else {
      set_mixer(traits, Mixer::mamba2);
    }
    if (facts(traits.architecture).one_branch) set_branches(fields, traits);
  }
  check_heads(traits, fields);
}

void read_config_mixers(const ConfigFields& config, Traits& traits) {
  const std::string_view prefix = facts(traits.architecture).mixer_prefix;
  if (prefix.empty()) return;
  if (prefix == "conv") {
    read_lfm2(config, traits);
  } else if (prefix == "linear_attn") {
    read_delta_net(config, traits);
  } else if (traits.architecture == Architecture::mamba) {
    read_mamba(config, traits);
  } else {
    read_mamba2(config, traits);
    if (traits.architecture == Architecture::mamba2) set_mixer(traits, Mixer::mamba2);
    if (traits.architecture == Architecture::falcon_h1) read_falcon_h1(config, traits);
    if (traits.architecture == Architecture::granitemoehybrid) {
      read_types(config, "layer_types", Mixer::mamba2, traits);
      if (config.text("position_embedding_type", "rope") != "rope") {
        for (BlockTraits& block : traits.block) block.rope = false;
      }
    }
  }
  check_heads(traits, config);
}

std::vector<float> mixer_vector(const Traits& traits, Role role, std::vector<float> values, std::size_t cols) {
  const RecurrentTraits& recurrent = traits.recurrent;
  const auto width = static_cast<float>(traits.width);
  if (role == Role::router_norm || role == Role::stream_router_norm) {
    const float factor = role == Role::router_norm ? 1 / std::sqrt(width) : 1 / width;
    for (float& value : values) value *= factor;
  }
  if (role == Role::decay_rate && recurrent.log_rates) {
    for (float& value : values) value = -std::exp(value);
  }
  if (cols <= 1) return values;
  const bool multiplied = role == Role::taps && facts(traits.architecture).multipliers;
  const std::size_t rows = values.size() / cols;
  std::vector<float> turned(values.size());
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t at = role == Role::taps ? channel_of_row(recurrent.scan, row) : row;
    const float factor = multiplied ? channel_factor(traits, row) : 1;
    for (std::size_t col = 0; col < cols; ++col) turned[col * rows + at] = values[row * cols + col] * factor;
  }
  return turned;
}

}  // namespace imago::models
