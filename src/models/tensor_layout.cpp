#include "models/tensor_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "models/architectures.h"
#include "models/mixers.h"
#include "models/tensor_names.h"

namespace imago::models {

namespace {

/// A vector of values for each channel has them as columns.
Shape vector_shape(const RoleExtent& extent) {
  return extent.cols == 1 ? Shape{extent.rows} : Shape{extent.rows, extent.cols};
}

/// Collects the tensors of a block, or of what is around the blocks.
class Lister {
 public:
  Lister(const Traits& traits, const Naming& naming, std::optional<std::size_t> block = std::nullopt)
      : traits_(traits), naming_(naming), block_(block) {}

  void add(Role role, bool optional = false) { add_named(tensor_name(traits_, naming_.gguf, role), {role}, optional); }

  LayoutTensor& add_named(std::string name, std::vector<Role> roles, bool optional = false) {
    RoleExtent extent = extent_of(traits_, roles[0], block_.value_or(0));
    for (std::size_t i = 1; i < roles.size(); ++i) extent.rows += extent_of(traits_, roles[i], block_.value_or(0)).rows;
    LayoutTensor& tensor = list_.emplace_back();
    tensor.name = block_ ? name_in_block(traits_, naming_.gguf, *block_, name) : std::move(name);
    tensor.roles = std::move(roles);
    tensor.optional = optional;
    // gpt2's layers have their matrices the other way round in folders; embeddings are not layers.
    tensor.transposed = traits_.architecture == Architecture::gpt2 && !naming_.gguf && block_ && !extent.vector;
    tensor.shape = extent.vector       ? vector_shape(extent)
                   : tensor.transposed ? Shape{extent.cols, extent.rows}
                                       : Shape{extent.rows, extent.cols};
    return tensor;
  }

  /// All experts in one tensor.
  LayoutTensor& add_stacked(std::string name, std::vector<Role> roles) {
    return add_copies(std::move(name), std::move(roles), traits_.experts);
  }

  /// `count` of them in one tensor.
  LayoutTensor& add_copies(std::string name, std::vector<Role> roles, std::size_t count) {
    LayoutTensor& tensor = add_named(std::move(name), std::move(roles));
    tensor.shape =
        tensor.shape.rank() == 1 ? Shape{count, tensor.shape[0]} : Shape{count, tensor.shape[0], tensor.shape[1]};
    tensor.experts = count;
    return tensor;
  }

  /// The transpose of key_up and then value_up of each head, all rows of one matrix.
  void add_key_values(std::string name) {
    LayoutTensor& tensor = add_named(std::move(name), {Role::key_up, Role::value_up});
    const std::size_t rows = traits_.head_values - traits_.rotary + traits_.latent_values;
    tensor.shape = {traits_.heads * rows, traits_.latent};
    tensor.experts = traits_.heads;
    tensor.key_values = true;
  }

  /// The same, [columns][rows] for each expert.
  LayoutTensor& add_stacked_transposed(std::string name, std::vector<Role> roles) {
    LayoutTensor& tensor = add_stacked(std::move(name), std::move(roles));
    tensor.shape = {tensor.shape[0], tensor.shape[2], tensor.shape[1]};
    tensor.transposed = true;
    return tensor;
  }

  std::vector<LayoutTensor> take() { return std::move(list_); }

 private:
  const Traits& traits_;
  const Naming& naming_;
  std::optional<std::size_t> block_;
  std::vector<LayoutTensor> list_;
};

/// The tensors of a mixer that is not attention.
void list_mixer(const Traits& traits, const Naming& naming, Mixer mixer, Lister& list) {
  const auto add = [&](std::vector<Role> roles, bool optional = false) -> LayoutTensor& {
    const Role first = roles.front();
    return list.add_named(mixer_name(traits, naming.gguf, first), std::move(roles), optional);
  };
  const kernels::LinearScanShape& scan = traits.recurrent.scan;
  switch (mixer) {
    case Mixer::attention:
    case Mixer::none: return;
    case Mixer::short_conv: add({Role::input_gate, Role::output_gate, Role::channels}); break;
    case Mixer::delta_rule:
      if (scan.grouped) {
        const std::string_view name = naming.gguf ? "ssm_in.weight" : "linear_attn.in_proj_qkvz.weight";
        list.add_named(std::string(name), {Role::channels, Role::output_gate}).groups = scan.groups;
      } else {
        add({Role::channels});
        add({Role::output_gate});
      }
      if (traits.architecture == Architecture::qwen3_next) {
        const std::string_view name = naming.gguf ? "ssm_ba.weight" : "linear_attn.in_proj_ba.weight";
        list.add_named(std::string(name), {Role::input_gate, Role::step}).groups = scan.groups;
      } else {
        add({Role::input_gate});
        add({Role::step});
      }
      break;
    case Mixer::mamba:
      add({Role::channels, Role::output_gate});
      add({Role::step_low, Role::input_gate});
      add({Role::step});
      break;
    case Mixer::mamba2:
    case Mixer::mamba2_beside_attention: add({Role::output_gate, Role::channels, Role::step}); break;
  }
  LayoutTensor& taps = add({Role::taps});
  if (!naming.gguf) taps.shape = {taps.shape[0], 1, traits.recurrent.kernel};
  if (mixer != Mixer::short_conv) {
    if (mixer != Mixer::delta_rule) add({Role::taps_bias}, true);
    const bool columns = naming.gguf && mixer != Mixer::delta_rule && mixer != Mixer::mamba;
    add({Role::step_bias});
    LayoutTensor& rates = add({Role::decay_rate});
    if (columns) rates.shape = {scan.heads, 1};
    if (mixer != Mixer::delta_rule) {
      LayoutTensor& skip = add({Role::skip});
      if (columns) skip.shape = {scan.heads, 1};
    }
    if (mixer != Mixer::mamba && traits.recurrent.norm_groups != 0) {
      LayoutTensor& norm = add({Role::scan_norm});
      if (columns) norm.shape = {scan.groups, scan.results() / scan.groups};
    }
  }
  add({Role::scan_output});
}

void list_latent(const Traits& traits, const Naming& naming, Lister& list) {
  if (traits.query_low == 0) {
    list.add(Role::query);
  } else {
    list.add(Role::query_low);
    list.add(Role::query_low_norm);
    list.add_named(naming.gguf ? "attn_q_b.weight" : "self_attn.q_b_proj.weight", {Role::query});
  }
  list.add(Role::latent);
  list.add(Role::latent_norm);
  if (naming.fused_key_values) {
    list.add_key_values(naming.gguf ? "attn_kv_b.weight" : "self_attn.kv_b_proj.weight");
  } else {
    list.add_copies("attn_k_b.weight", {Role::key_up}, traits.heads);
    list.add_copies("attn_v_b.weight", {Role::value_up}, traits.heads);
  }
  list.add(Role::attention_output);
}

/// Whether a block has no keys or values of its own, or no values because its keys are.
bool lacks(const Traits& traits, const BlockTraits& block, Role role) {
  if (traits.streams != 0) return false;
  const bool value = role == Role::value || role == Role::value_bias;
  const bool key = role == Role::key || role == Role::key_bias || role == Role::key_norm;
  return block.cache ? key || value : block.keys_are_values && value;
}

void list_projections(const Traits& traits, const Naming& naming, std::size_t block, Lister& list) {
  if (traits.latent != 0) return list_latent(traits, naming, list);
  const auto has = [&](Role role) { return !lacks(traits, traits.block[block], role); };
  const bool unused = traits.block[block].cache.has_value();  // older files of gemma3n have them all the same
  const bool gpt2 = traits.architecture == Architecture::gpt2;
  // transformers gives qwen2 these biases always and gpt2 all of them; converted files may come from relatives without.
  const bool biased = gpt2 || traits.architecture == Architecture::bert;
  const bool bias_optional = !biased && (naming.gguf || traits.architecture != Architecture::qwen2);
  if (naming.fused_qkv) {
    const ArchitectureFacts& row = facts(traits.architecture);
    const std::string_view name = naming.gguf ? "attn_qkv" : row.fused_qkv;
    const std::size_t groups = row.grouped_qkv && !naming.gguf ? traits.kv_heads : 1;
    list.add_named(fmt::format("{}.weight", name), {Role::query, Role::key, Role::value}).groups = groups;
    list.add_named(fmt::format("{}.bias", name), {Role::query_bias, Role::key_bias, Role::value_bias}, bias_optional)
        .groups = groups;
  } else {
    if (traits.attention_gate) {
      list.add_named(tensor_name(traits, naming.gguf, Role::query), {Role::query, Role::attention_gate}).groups =
          traits.heads;
    } else {
      list.add(Role::query);
    }
    for (const Role role : {Role::key, Role::value}) {
      if (has(role)) list.add(role, unused);
    }
    for (const Role role : {Role::query_bias, Role::key_bias, Role::value_bias}) {
      if (has(role)) list.add(role, bias_optional);
    }
  }
  if (traits.query_norm != QueryNorm::none) {
    list.add(Role::query_norm);
    if (has(Role::key_norm)) list.add(Role::key_norm, unused);
  }
  list.add(Role::attention_output);
  list.add(Role::attention_output_bias, !biased);
  if (traits.attention_sinks) list.add(Role::sinks);
}

/// Folders of gpt_oss have gate and up row by row in turns.
void list_woven_experts(const Naming& naming, std::size_t rows, Lister& list) {
  const auto add = [&](std::string name, std::vector<Role> roles) -> LayoutTensor& {
    return naming.mxfp4_experts ? list.add_stacked(std::move(name), std::move(roles))
                                : list.add_stacked_transposed(std::move(name), std::move(roles));
  };
  add("mlp.experts.gate_up_proj", {Role::gate, Role::up}).groups = rows;
  list.add_stacked("mlp.experts.gate_up_proj_bias", {Role::gate_bias, Role::up_bias}).groups = rows;
  add("mlp.experts.down_proj", {Role::down});
  list.add_stacked("mlp.experts.down_proj_bias", {Role::down_bias});
}

void list_experts(const Traits& traits, const Naming& naming, Lister& list) {
  const std::vector matrices =
      traits.gated ? std::vector{Role::gate, Role::up, Role::down} : std::vector{Role::up, Role::down};
  if (traits.architecture == Architecture::mixtral && naming.stacked_experts && !naming.gguf) {
    list.add_named("mlp.gate.weight", {Role::router});
  } else {
    list.add(Role::router);
  }
  const bool biased = facts(traits.architecture).feed_forward_bias;
  if (biased) list.add(Role::router_bias);
  if (traits.choice_bias) list.add(Role::choice_bias);
  if (traits.experts_beside) {
    for (const Role role :
         {Role::router_norm, Role::expert_scale, Role::dense_post_norm, Role::experts_norm, Role::experts_post_norm}) {
      list.add(role);
    }
  }
  if (traits.shared_feed_forward != 0) {
    if (traits.shared_router) list.add(Role::shared_router);
    if (traits.architecture == Architecture::granitemoehybrid && !naming.gguf) {
      list.add_named("shared_mlp.input_linear.weight", {Role::shared_gate, Role::shared_up});
      list.add_named("shared_mlp.output_linear.weight", {Role::shared_down});
    } else {
      if (traits.gated) list.add(Role::shared_gate);
      for (const Role role : {Role::shared_up, Role::shared_down}) list.add(role);
    }
  }
  if (naming.gguf && naming.fused_experts) {
    list.add_stacked("ffn_gate_up_exps.weight", {Role::gate, Role::up});
    list.add_stacked("ffn_down_exps.weight", {Role::down});
  } else if (naming.gguf) {
    for (const Role role : matrices) {
      list.add_stacked(fmt::format("ffn_{}_exps.weight", feed_forward_name(role)), {role});
    }
    for (const Role role : {Role::gate_bias, Role::up_bias, Role::down_bias}) {
      if (biased) list.add_stacked(fmt::format("ffn_{}_exps.bias", feed_forward_name(role)), {role});
    }
  } else if (traits.architecture == Architecture::gpt_oss) {
    list_woven_experts(naming, expert_feed_forward(traits), list);
  } else if (traits.architecture == Architecture::granitemoe || traits.architecture == Architecture::granitemoehybrid) {
    list.add_stacked("block_sparse_moe.input_linear.weight", {Role::gate, Role::up});
    list.add_stacked("block_sparse_moe.output_linear.weight", {Role::down});
  } else if (traits.experts_beside) {
    list.add_stacked("experts.gate_up_proj", {Role::gate, Role::up});
    list.add_stacked("experts.down_proj", {Role::down});
  } else if (naming.stacked_experts) {
    list.add_stacked("mlp.experts.gate_up_proj", {Role::gate, Role::up});
    list.add_stacked("mlp.experts.down_proj", {Role::down});
  } else {
    for (std::size_t expert = 0; expert < traits.experts; ++expert) {
      for (const Role role : matrices) {
        list.add_named(expert_name(traits, role, expert), {role}).first_expert = expert;
      }
    }
  }
}

void list_feed_forward(const Traits& traits, const Naming& naming, std::size_t block, Lister& list) {
  if (traits.block[block].experts) return list_experts(traits, naming, list);
  if (naming.fused_gate_up) {
    list.add_named(naming.gguf                                       ? "ffn_up.weight"
                   : traits.architecture == Architecture::modernbert ? "mlp.Wi.weight"
                                                                     : "mlp.gate_up_proj.weight",
                   {Role::gate, Role::up});
  } else {
    if (traits.gated) list.add(Role::gate);
    list.add(Role::up);
  }
  list.add(Role::down);
  if (facts(traits.architecture).feed_forward_bias) {
    list.add(Role::up_bias);
    list.add(Role::down_bias);
  }
}

}  // namespace

Naming usual_naming(const Traits& traits, bool gguf) {
  const ArchitectureFacts& row = facts(traits.architecture);
  return {.gguf = gguf,
          .fused_qkv = !row.fused_qkv.empty(),
          .fused_gate_up = row.fused_gate_up,
          .fused_experts = gguf && traits.experts_beside,
          .stacked_experts = gguf && traits.experts > 0,
          .fused_key_values = !gguf};
}

Naming naming_of(const files::TensorFile& file, const Traits& traits) {
  Naming naming = usual_naming(traits, file.gguf() != nullptr);
  if (naming.gguf) {
    const bool attends_first = has_attention(traits.block.front().mixer);  // the delta rule has such a tensor too
    naming.fused_qkv = (attends_first && file.find("blk.0.attn_qkv.weight") != nullptr) ||
                       (naming.fused_qkv && file.find("blk.0.attn_q.weight") == nullptr);
    naming.fused_key_values = file.find("blk.0.attn_kv_b.weight") != nullptr;
    naming.fused_gate_up = naming.fused_gate_up && file.find("blk.0.ffn_gate.weight") == nullptr;
    naming.fused_experts = file.find(fmt::format("blk.{}.ffn_gate_up_exps.weight", first_experts(traits))) != nullptr;
  } else if (traits.experts > 0) {
    const std::string name = fmt::format("model.layers.{}.mlp.experts.gate_up_proj", first_experts(traits));
    const files::StoredTensor* const stacked = find_weight(file, name);
    naming.stacked_experts = stacked != nullptr;
    naming.mxfp4_experts = stacked != nullptr && stacked->format && stacked->format->is_block();
  }
  return naming;
}

std::vector<LayoutTensor> outer_layout(const Traits& traits, const Naming& naming) {
  Lister list(traits, naming);
  list.add(Role::token_embedding);
  const bool biased = facts(traits.architecture).norm_bias;
  if (traits.learned_positions) list.add(Role::position_embedding);
  if (traits.token_types != 0) list.add(Role::token_types);
  if (traits.embedding_norm) {
    list.add(Role::embedding_norm);
    if (biased) list.add(Role::embedding_norm_bias);
  }
  if (!traits.sum_norms) {
    list.add(Role::output_norm);
    if (biased) list.add(Role::output_norm_bias);
  }
  if (traits.has_output && !traits.tied_output) list.add(Role::output);
  if (facts(traits.architecture).output_bias) list.add(Role::output_bias);
  if (traits.head.hidden != 0) {
    list.add(Role::head_dense);
    list.add(Role::head_dense_bias, true);
  }
  if (traits.head.norm) list.add(Role::head_norm);
  if (traits.head.results != 0) {
    list.add(Role::head_output);
    list.add(Role::head_output_bias, true);
  }
  if (naming.gguf && !traits.learned_positions) list.add(Role::rope_factors, true);
  if (traits.layer_values != 0) {
    for (const Role role : {Role::layer_embedding, Role::layer_projection, Role::layer_projection_norm}) list.add(role);
  }
  if (traits.streams != 0) {
    for (const Role role : {Role::stream_projection, Role::stream_merge}) {
      const std::string name = tensor_name(traits, naming.gguf, role);
      if (naming.gguf) list.add_copies(name, {role}, traits.streams - 1);
      for (std::size_t i = 0; !naming.gguf && i + 1 < traits.streams; ++i) {
        list.add_named(fmt::format("{}.{}.weight", name, i), {role}).first_expert = i;
      }
    }
  }
  return list.take();
}

std::vector<LayoutTensor> block_layout(const Traits& traits, const Naming& naming, std::size_t block) {
  Lister list(traits, naming, block);
  const bool biased = facts(traits.architecture).norm_bias;
  const bool norms_after = traits.post_norms || traits.sum_norms;
  if (traits.pre_norms && traits.block[block].attention_norm) {
    list.add(Role::attention_norm);
    if (biased) list.add(Role::attention_norm_bias);
  }
  const BlockTraits& own = traits.block[block];
  if (traits.streams != 0) {
    for (const Role role : {Role::stream_router, Role::stream_router_norm, Role::stream_prediction,
                            Role::stream_correction, Role::stream_scale}) {
      list.add(role);
    }
  }
  if (traits.laurel_rank != 0) {
    for (const Role role : {Role::laurel_low, Role::laurel_up, Role::laurel_norm}) list.add(role);
  }
  if (has_attention(own.mixer)) list_projections(traits, naming, block, list);
  list_mixer(traits, naming, own.mixer, list);
  if (norms_after) list.add(Role::attention_post_norm);
  if (norms_after && biased) list.add(Role::attention_post_norm_bias);
  if (own.feed_forward == 0) return list.take();
  if (traits.pre_norms && !traits.shared_norm && own.mixer != Mixer::none) {
    // With norms on both sides, the name that others give this one is taken by the norm after attention.
    if (traits.post_norms && !naming.gguf && traits.architecture != Architecture::glm4) {
      list.add_named("pre_feedforward_layernorm.weight", {Role::feed_forward_norm});
    } else {
      list.add(Role::feed_forward_norm);
    }
    if (biased) list.add(Role::feed_forward_norm_bias);
  }
  list_feed_forward(traits, naming, block, list);
  if (norms_after) list.add(Role::feed_forward_post_norm);
  if (norms_after && biased) list.add(Role::feed_forward_post_norm_bias);
  if (traits.layer_values != 0) {
    for (const Role role : {Role::layer_gate, Role::layer_output, Role::layer_post_norm}) list.add(role);
  }
  if (facts(traits.architecture).block_scale) list.add(Role::block_scale);
  return list.take();
}

bool is_norm(Role role) noexcept {
  constexpr std::array kNorms = {Role::output_norm,       Role::attention_norm,         Role::attention_post_norm,
                                 Role::feed_forward_norm, Role::feed_forward_post_norm, Role::query_norm,
                                 Role::key_norm};
  return std::find(kNorms.begin(), kNorms.end(), role) != kNorms.end();
}

RoleExtent extent_of(const Traits& traits, Role role, std::size_t block) noexcept {
  const std::size_t head_values = head_values_of(traits, block);
  const std::size_t query = traits.heads * head_values, key = kv_heads_of(traits, block) * head_values;
  const std::size_t layer_inputs = traits.layer_values * traits.blocks;
  const std::size_t width = traits.width, feed_forward = traits.block[block].feed_forward;
  const std::size_t shared = traits.shared_feed_forward;
  const bool whole_row = traits.query_norm == QueryNorm::row;
  const RecurrentTraits& recurrent = traits.recurrent;
  const kernels::LinearScanShape& scan = recurrent.scan;
  const auto recurs =
      std::ranges::find_if(traits.block, [](const BlockTraits& one) { return is_recurrent(one.mixer); });
  const Mixer mixer = recurs == traits.block.end() ? Mixer::attention : recurs->mixer;  // no model has two kinds
  const bool convolves = mixer == Mixer::short_conv;
  const std::size_t results = convolves ? width : scan.results();
  const std::size_t channels = convolves || mixer == Mixer::mamba ? results : scan.channels();
  const std::size_t inputs = convolves ? width : scan.heads;
  switch (role) {
    case Role::token_embedding:
    case Role::output: return {traits.vocabulary, width};
    case Role::position_embedding: return {traits.context, width};
    case Role::token_types: return {traits.token_types, width};
    case Role::embedding_norm:
    case Role::embedding_norm_bias:
    case Role::output_norm:
    case Role::output_norm_bias:
    case Role::attention_norm:
    case Role::attention_norm_bias:
    case Role::attention_post_norm:
    case Role::attention_post_norm_bias:
    case Role::attention_output_bias:
    case Role::feed_forward_norm:
    case Role::feed_forward_norm_bias:
    case Role::feed_forward_post_norm:
    case Role::feed_forward_post_norm_bias:
    case Role::down_bias: return {width, 1, true};
    case Role::query: return {query, traits.query_low != 0 ? traits.query_low : width};
    case Role::query_low: return {traits.query_low, width};
    case Role::query_low_norm: return {traits.query_low, 1, true};
    case Role::latent: return {traits.latent + traits.rotary, width};
    case Role::latent_norm: return {traits.latent, 1, true};
    case Role::key_up: return {traits.latent, traits.head_values - traits.rotary};
    case Role::value_up: return {traits.latent_values, traits.latent};
    case Role::query_bias: return {query, 1, true};
    case Role::key:
    case Role::value: return {key, width};
    case Role::key_bias:
    case Role::value_bias: return {key, 1, true};
    case Role::query_norm: return {whole_row ? query : head_values, 1, true};
    case Role::key_norm: return {whole_row ? key : head_values, 1, true};
    case Role::attention_output: return {width, traits.latent != 0 ? traits.heads * traits.latent_values : query};
    case Role::sinks: return {traits.heads, 1, true};
    case Role::gate:
    case Role::up: return {feed_forward, width};
    case Role::gate_bias:
    case Role::up_bias: return {feed_forward, 1, true};
    case Role::down: return {width, feed_forward};
    case Role::router: return {traits.experts, width};
    case Role::router_bias:
    case Role::choice_bias: return {traits.experts, 1, true};
    case Role::shared_router: return {1, width};
    case Role::shared_gate:
    case Role::shared_up: return {shared, width};
    case Role::shared_down: return {width, shared};
    case Role::rope_factors: return {traits.rotary / 2, 1, true};
    case Role::head_dense: return {traits.head.hidden, width};
    case Role::head_dense_bias:
    case Role::head_norm: return {traits.head.hidden, 1, true};
    case Role::head_output: return {traits.head.results, traits.head.hidden != 0 ? traits.head.hidden : width};
    case Role::head_output_bias: return {traits.head.results, 1, true};
    case Role::layer_embedding: return {traits.layer_vocabulary, layer_inputs};
    case Role::layer_projection: return {layer_inputs, width};
    case Role::layer_projection_norm: return {traits.layer_values, 1, true};
    case Role::layer_gate: return {traits.layer_values, width};
    case Role::layer_output: return {width, traits.layer_values};
    case Role::layer_post_norm: return {width, 1, true};
    case Role::block_scale: return {1, 1, true};
    case Role::router_norm:
    case Role::dense_post_norm:
    case Role::experts_norm:
    case Role::experts_post_norm:
    case Role::stream_router_norm:
    case Role::stream_scale:
    case Role::laurel_norm: return {width, 1, true};
    case Role::expert_scale: return {traits.experts, 1, true};
    case Role::stream_projection:
    case Role::stream_merge: return {width, width};
    case Role::stream_router: return {traits.streams, width};
    case Role::stream_prediction: return {traits.streams * traits.streams, traits.streams, true};
    case Role::stream_correction: return {traits.streams, traits.streams, true};
    case Role::laurel_low: return {traits.laurel_rank, width};
    case Role::laurel_up: return {width, traits.laurel_rank};
    case Role::attention_gate: return {query, width};
    case Role::channels: return {channels, width};
    case Role::input_gate:
      return mixer == Mixer::mamba ? RoleExtent{2 * scan.keys, channels} : RoleExtent{inputs, width};
    case Role::output_gate: return {results, width};
    case Role::step:
      return mixer == Mixer::mamba ? RoleExtent{channels, recurrent.rank} : RoleExtent{scan.heads, width};
    case Role::step_bias: return {scan.heads, 1, true};
    case Role::step_low: return {recurrent.rank, channels};
    case Role::taps: return {channels, recurrent.kernel, true};
    case Role::taps_bias: return {channels, 1, true};
    case Role::decay_rate: return {scan.heads, mixer == Mixer::mamba ? scan.keys : 1, true};
    case Role::skip: return {scan.heads, 1, true};
    case Role::scan_norm: return {mixer == Mixer::delta_rule ? scan.values : results, 1, true};
    case Role::scan_output: return {width, results};
    case Role::output_bias: return {traits.vocabulary, 1, true};
  }
  return {};
}

const files::StoredTensor* find_weight(const files::TensorFile& file, std::string_view name) {
  if (const files::StoredTensor* tensor = file.find(name)) return tensor;
  // Beside the encoders of images or sounds, a language model has names after those of the whole.
  if (const files::StoredTensor* tensor = file.find(fmt::format("language_model.{}", name))) return tensor;
  for (const std::string_view prefix : {"model.", "transformer.", "gpt_neox.", "bert."}) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = name.substr(prefix.size());
    const files::StoredTensor* const tensor = file.find(fmt::format("model.language_model.{}", rest));
    return tensor != nullptr ? tensor : file.find(rest);
  }
  return nullptr;
}

std::string matrix_name(const Traits& traits, Role role, std::size_t block) {
  const Naming naming = usual_naming(traits, true);
  constexpr std::array kOuter = {Role::rope_factors,     Role::output_bias,           Role::layer_embedding,
                                 Role::layer_projection, Role::layer_projection_norm, Role::stream_projection,
                                 Role::stream_merge};
  const bool outer = role < Role::attention_norm || std::ranges::find(kOuter, role) != kOuter.end();
  const std::vector<LayoutTensor> tensors = outer ? outer_layout(traits, naming) : block_layout(traits, naming, block);
  const auto found = std::ranges::find_if(
      tensors, [&](const LayoutTensor& tensor) { return std::ranges::find(tensor.roles, role) != tensor.roles.end(); });
  return found == tensors.end() ? std::string() : found->name;
}

RolePlace place_of(const Traits& traits, const LayoutTensor& tensor, std::size_t block, std::size_t expert,
                   std::size_t role) {
  std::size_t before = 0, all = 0;  // rows of the roles before this one, and of all
  for (std::size_t i = 0; i < tensor.roles.size(); ++i) {
    const std::size_t rows = extent_of(traits, tensor.roles[i], block).rows;
    if (i < role) before += rows;
    all += rows;
  }
  const RoleExtent own = extent_of(traits, tensor.roles[role], block);
  if (tensor.key_values) {
    const std::size_t plain = extent_of(traits, Role::key_up, block).cols;
    const std::size_t values = extent_of(traits, Role::value_up, block).rows;
    const std::size_t first = expert * (plain + values) * traits.latent;
    if (role == 0) return {first, 1, traits.latent};
    return {first + plain * traits.latent, traits.latent, 1};
  }
  before /= tensor.groups;
  const std::size_t group_rows = all / tensor.groups, apart = own.rows == tensor.groups ? group_rows : 1;
  if (tensor.transposed) return {expert * all * own.cols + before, apart, all, group_rows};
  return {(expert * all + before) * own.cols, apart * own.cols, 1, group_rows};
}

NamedMatrices matrices_of(const Traits& traits, const LayoutTensor& tensor, std::size_t block) {
  if (tensor.key_values || extent_of(traits, tensor.roles.front(), block).vector) return {};
  // Fused on one side only: the first part stands for all, since they share their inputs.
  return {matrix_name(traits, tensor.roles.front(), block), tensor.first_expert, tensor.experts};
}

}  // namespace imago::models
