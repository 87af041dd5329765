#include "models/tensor_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "files/hugging_face.h"
#include "models/architectures.h"

namespace imago::models {

using backend::Role;

namespace {

/// Names in the three conventions; in a block, after "model.layers.N.", "transformer.h.N." and "blk.N.".
struct RoleNames {
  Role role;
  std::string_view folder, gpt2, gguf;
};

constexpr std::array kNames = {
    RoleNames{Role::token_embedding, "model.embed_tokens.weight", "transformer.wte.weight", "token_embd.weight"},
    RoleNames{Role::position_embedding, "", "transformer.wpe.weight", "position_embd.weight"},
    RoleNames{Role::token_types, "", "", "token_types.weight"},
    RoleNames{Role::embedding_norm, "", "", "token_embd_norm.weight"},
    RoleNames{Role::embedding_norm_bias, "", "", "token_embd_norm.bias"},
    RoleNames{Role::output_norm, "model.norm.weight", "transformer.ln_f.weight", "output_norm.weight"},
    RoleNames{Role::output_norm_bias, "model.norm.bias", "transformer.ln_f.bias", "output_norm.bias"},
    RoleNames{Role::output, "lm_head.weight", "lm_head.weight", "output.weight"},
    RoleNames{Role::head_dense, "", "", "cls.weight"},
    RoleNames{Role::head_dense_bias, "", "", "cls.bias"},
    RoleNames{Role::head_norm, "", "", "cls.norm.weight"},
    RoleNames{Role::head_output, "", "", "cls.output.weight"},
    RoleNames{Role::head_output_bias, "", "", "cls.output.bias"},
    RoleNames{Role::output_bias, "lm_head.bias", "", "output.bias"},
    RoleNames{Role::rope_factors, "", "", "rope_freqs.weight"},
    RoleNames{Role::layer_embedding, "model.embed_tokens_per_layer.weight", "", "per_layer_token_embd.weight"},
    RoleNames{Role::layer_projection, "model.per_layer_model_projection.weight", "", "per_layer_model_proj.weight"},
    RoleNames{Role::layer_projection_norm, "model.per_layer_projection_norm.weight", "", "per_layer_proj_norm.weight"},
    RoleNames{Role::layer_gate, "per_layer_input_gate.weight", "", "inp_gate.weight"},
    RoleNames{Role::layer_output, "per_layer_projection.weight", "", "proj.weight"},
    RoleNames{Role::layer_post_norm, "post_per_layer_input_norm.weight", "", "post_norm.weight"},
    RoleNames{Role::block_scale, "layer_scalar", "", "layer_output_scale.weight"},
    RoleNames{Role::attention_norm, "input_layernorm.weight", "ln_1.weight", "attn_norm.weight"},
    RoleNames{Role::attention_norm_bias, "input_layernorm.bias", "ln_1.bias", "attn_norm.bias"},
    RoleNames{Role::attention_post_norm, "post_attention_layernorm.weight", "", "post_attention_norm.weight"},
    RoleNames{Role::query, "self_attn.q_proj.weight", "attn.c_attn.weight", "attn_q.weight"},
    RoleNames{Role::query_bias, "self_attn.q_proj.bias", "attn.c_attn.bias", "attn_q.bias"},
    RoleNames{Role::key, "self_attn.k_proj.weight", "", "attn_k.weight"},
    RoleNames{Role::key_bias, "self_attn.k_proj.bias", "", "attn_k.bias"},
    RoleNames{Role::value, "self_attn.v_proj.weight", "", "attn_v.weight"},
    RoleNames{Role::value_bias, "self_attn.v_proj.bias", "", "attn_v.bias"},
    RoleNames{Role::query_norm, "self_attn.q_norm.weight", "", "attn_q_norm.weight"},
    RoleNames{Role::key_norm, "self_attn.k_norm.weight", "", "attn_k_norm.weight"},
    RoleNames{Role::attention_output, "self_attn.o_proj.weight", "attn.c_proj.weight", "attn_output.weight"},
    RoleNames{Role::attention_output_bias, "self_attn.o_proj.bias", "attn.c_proj.bias", "attn_output.bias"},
    RoleNames{Role::sinks, "self_attn.sinks", "", "attn_sinks.weight"},
    RoleNames{Role::query_low, "self_attn.q_a_proj.weight", "", "attn_q_a.weight"},
    RoleNames{Role::query_low_norm, "self_attn.q_a_layernorm.weight", "", "attn_q_a_norm.weight"},
    RoleNames{Role::latent, "self_attn.kv_a_proj_with_mqa.weight", "", "attn_kv_a_mqa.weight"},
    RoleNames{Role::latent_norm, "self_attn.kv_a_layernorm.weight", "", "attn_kv_a_norm.weight"},
    RoleNames{Role::key_up, "", "", "attn_k_b.weight"},
    RoleNames{Role::value_up, "", "", "attn_v_b.weight"},
    RoleNames{Role::feed_forward_norm, "post_attention_layernorm.weight", "ln_2.weight", "ffn_norm.weight"},
    RoleNames{Role::feed_forward_norm_bias, "post_attention_layernorm.bias", "ln_2.bias", "ffn_norm.bias"},
    RoleNames{Role::feed_forward_post_norm, "post_feedforward_layernorm.weight", "", "post_ffw_norm.weight"},
    RoleNames{Role::gate, "mlp.gate_proj.weight", "", "ffn_gate.weight"},
    RoleNames{Role::up, "mlp.up_proj.weight", "mlp.c_fc.weight", "ffn_up.weight"},
    RoleNames{Role::up_bias, "", "mlp.c_fc.bias", "ffn_up.bias"},
    RoleNames{Role::down, "mlp.down_proj.weight", "mlp.c_proj.weight", "ffn_down.weight"},
    RoleNames{Role::down_bias, "", "mlp.c_proj.bias", "ffn_down.bias"},
    RoleNames{Role::router, "mlp.gate.weight", "", "ffn_gate_inp.weight"},
    RoleNames{Role::router_bias, "", "", "ffn_gate_inp.bias"},
    RoleNames{Role::choice_bias, "mlp.gate.e_score_correction_bias", "", "exp_probs_b.bias"},
    RoleNames{Role::shared_router, "mlp.shared_expert_gate.weight", "", "ffn_gate_inp_shexp.weight"},
    RoleNames{Role::shared_gate, "mlp.shared_experts.gate_proj.weight", "", "ffn_gate_shexp.weight"},
    RoleNames{Role::shared_up, "mlp.shared_experts.up_proj.weight", "", "ffn_up_shexp.weight"},
    RoleNames{Role::shared_down, "mlp.shared_experts.down_proj.weight", "", "ffn_down_shexp.weight"},
    RoleNames{Role::router_norm, "router.scale", "", "ffn_gate_inp.scale"},
    RoleNames{Role::expert_scale, "router.per_expert_scale", "", "ffn_down_exps.scale"},
    RoleNames{Role::dense_post_norm, "post_feedforward_layernorm_1.weight", "", "post_ffw_norm_1.weight"},
    RoleNames{Role::experts_norm, "pre_feedforward_layernorm_2.weight", "", "pre_ffw_norm_2.weight"},
    RoleNames{Role::experts_post_norm, "post_feedforward_layernorm_2.weight", "", "post_ffw_norm_2.weight"},
    RoleNames{Role::stream_projection, "model.altup_projections", "", "altup_proj.weight"},
    RoleNames{Role::stream_merge, "model.altup_unembed_projections", "", "altup_unembd_proj.weight"},
    RoleNames{Role::stream_router, "altup.modality_router.weight", "", "altup_router.weight"},
    RoleNames{Role::stream_router_norm, "altup.router_norm.weight", "", "altup_router_norm.weight"},
    RoleNames{Role::stream_prediction, "altup.prediction_coefs.weight", "", "altup_predict_coef.weight"},
    RoleNames{Role::stream_correction, "altup.correction_coefs.weight", "", "altup_correct_coef.weight"},
    RoleNames{Role::stream_scale, "altup.correct_output_scale", "", "altup_correct_scale.weight"},
    RoleNames{Role::laurel_low, "laurel.linear_left.weight", "", "laurel_l.weight"},
    RoleNames{Role::laurel_up, "laurel.linear_right.weight", "", "laurel_r.weight"},
    RoleNames{Role::laurel_norm, "laurel.post_laurel_norm.weight", "", "laurel_post_norm.weight"},
};

/// Names that one architecture has in place of those; a bias is called like its weight. An empty one is as above.
struct OtherNames {
  Architecture architecture;
  Role role;
  std::string_view folder, gguf = {};
};

constexpr std::array kOtherNames = {
    OtherNames{Architecture::mixtral, Role::router, "block_sparse_moe.gate.weight", ""},
    OtherNames{Architecture::granitemoe, Role::router, "block_sparse_moe.router.layer.weight", ""},
    OtherNames{Architecture::glm4, Role::attention_post_norm, "post_self_attn_layernorm.weight", ""},
    OtherNames{Architecture::glm4, Role::feed_forward_norm, "post_attention_layernorm.weight", ""},
    OtherNames{Architecture::glm4, Role::feed_forward_post_norm, "post_mlp_layernorm.weight", ""},
    OtherNames{Architecture::glm4_moe, Role::feed_forward_norm, "", "post_attention_norm.weight"},
    OtherNames{Architecture::minimax_m2, Role::router, "block_sparse_moe.gate.weight", ""},
    OtherNames{Architecture::minimax_m2, Role::choice_bias, "block_sparse_moe.e_score_correction_bias", ""},
    OtherNames{Architecture::gpt_oss, Role::feed_forward_norm, "", "post_attention_norm.weight"},
    OtherNames{Architecture::gpt_oss, Role::router, "mlp.router.weight", ""},
    OtherNames{Architecture::gpt_oss, Role::router_bias, "mlp.router.bias", ""},
    OtherNames{Architecture::hunyuan_v1_dense, Role::query_norm, "self_attn.query_layernorm.weight", ""},
    OtherNames{Architecture::hunyuan_v1_dense, Role::key_norm, "self_attn.key_layernorm.weight", ""},
    OtherNames{Architecture::starcoder2, Role::up, "mlp.c_fc.weight", ""},
    OtherNames{Architecture::starcoder2, Role::down, "mlp.c_proj.weight", ""},
    OtherNames{Architecture::phi, Role::output_norm, "model.final_layernorm.weight", ""},
    OtherNames{Architecture::phi, Role::attention_output, "self_attn.dense.weight", ""},
    OtherNames{Architecture::phi, Role::up, "mlp.fc1.weight", ""},
    OtherNames{Architecture::phi, Role::down, "mlp.fc2.weight", ""},
    OtherNames{Architecture::gpt_neox, Role::token_embedding, "gpt_neox.embed_in.weight", ""},
    OtherNames{Architecture::gpt_neox, Role::output_norm, "gpt_neox.final_layer_norm.weight", ""},
    OtherNames{Architecture::gpt_neox, Role::output, "embed_out.weight", ""},
    OtherNames{Architecture::gpt_neox, Role::attention_output, "attention.dense.weight", ""},
    OtherNames{Architecture::gpt_neox, Role::up, "mlp.dense_h_to_4h.weight", ""},
    OtherNames{Architecture::gpt_neox, Role::down, "mlp.dense_4h_to_h.weight", ""},
    OtherNames{Architecture::falcon, Role::token_embedding, "transformer.word_embeddings.weight", ""},
    OtherNames{Architecture::falcon, Role::output_norm, "transformer.ln_f.weight", ""},
    OtherNames{Architecture::falcon, Role::attention_norm, "ln_attn.weight", "attn_norm_2.weight"},
    OtherNames{Architecture::falcon, Role::attention_output, "self_attention.dense.weight", ""},
    OtherNames{Architecture::falcon, Role::feed_forward_norm, "ln_mlp.weight", "attn_norm.weight"},
    OtherNames{Architecture::falcon, Role::up, "mlp.dense_h_to_4h.weight", ""},
    OtherNames{Architecture::falcon, Role::down, "mlp.dense_4h_to_h.weight", ""},
    OtherNames{Architecture::gemma4, Role::router, "router.proj.weight", ""},
    OtherNames{Architecture::gemma4, Role::shared_gate, "mlp.gate_proj.weight", "ffn_gate.weight"},
    OtherNames{Architecture::gemma4, Role::shared_up, "mlp.up_proj.weight", "ffn_up.weight"},
    OtherNames{Architecture::gemma4, Role::shared_down, "mlp.down_proj.weight", "ffn_down.weight"},
    OtherNames{Architecture::lfm2, Role::output_norm, "model.embedding_norm.weight", "token_embd_norm.weight"},
    OtherNames{Architecture::lfm2, Role::attention_norm, "operator_norm.weight", ""},
    OtherNames{Architecture::lfm2, Role::feed_forward_norm, "ffn_norm.weight", ""},
    OtherNames{Architecture::lfm2, Role::query_norm, "self_attn.q_layernorm.weight", ""},
    OtherNames{Architecture::lfm2, Role::key_norm, "self_attn.k_layernorm.weight", ""},
    OtherNames{Architecture::lfm2, Role::attention_output, "self_attn.out_proj.weight", ""},
    OtherNames{Architecture::lfm2, Role::gate, "feed_forward.w1.weight", ""},
    OtherNames{Architecture::lfm2, Role::up, "feed_forward.w3.weight", ""},
    OtherNames{Architecture::lfm2, Role::down, "feed_forward.w2.weight", ""},
    OtherNames{Architecture::lfm2, Role::router, "feed_forward.gate.weight", ""},
    OtherNames{Architecture::lfm2, Role::choice_bias, "feed_forward.expert_bias", ""},
    OtherNames{Architecture::qwen3_next, Role::feed_forward_norm, "", "post_attention_norm.weight"},
    OtherNames{Architecture::qwen3_next, Role::shared_gate, "mlp.shared_expert.gate_proj.weight", ""},
    OtherNames{Architecture::qwen3_next, Role::shared_up, "mlp.shared_expert.up_proj.weight", ""},
    OtherNames{Architecture::qwen3_next, Role::shared_down, "mlp.shared_expert.down_proj.weight", ""},
    OtherNames{Architecture::mamba, Role::token_embedding, "backbone.embeddings.weight", ""},
    OtherNames{Architecture::mamba, Role::output_norm, "backbone.norm_f.weight", ""},
    OtherNames{Architecture::mamba, Role::attention_norm, "norm.weight", ""},
    OtherNames{Architecture::nemotron_h, Role::token_embedding, "backbone.embeddings.weight", ""},
    OtherNames{Architecture::nemotron_h, Role::output_norm, "backbone.norm_f.weight", ""},
    OtherNames{Architecture::nemotron_h, Role::attention_norm, "norm.weight", ""},
    OtherNames{Architecture::nemotron_h, Role::query, "mixer.q_proj.weight", ""},
    OtherNames{Architecture::nemotron_h, Role::key, "mixer.k_proj.weight", ""},
    OtherNames{Architecture::nemotron_h, Role::value, "mixer.v_proj.weight", ""},
    OtherNames{Architecture::nemotron_h, Role::attention_output, "mixer.o_proj.weight", ""},
    OtherNames{Architecture::nemotron_h, Role::up, "mixer.up_proj.weight", ""},
    OtherNames{Architecture::nemotron_h, Role::down, "mixer.down_proj.weight", ""},
    OtherNames{Architecture::nemotron_h, Role::router, "mixer.gate.weight", ""},
    OtherNames{Architecture::nemotron_h, Role::choice_bias, "mixer.gate.e_score_correction_bias", ""},
    OtherNames{Architecture::nemotron_h, Role::shared_up, "mixer.shared_experts.up_proj.weight", ""},
    OtherNames{Architecture::nemotron_h, Role::shared_down, "mixer.shared_experts.down_proj.weight", ""},
    OtherNames{Architecture::falcon_h1, Role::output_norm, "model.final_layernorm.weight", ""},
    OtherNames{Architecture::falcon_h1, Role::feed_forward_norm, "pre_ff_layernorm.weight", "ffn_norm"},
    OtherNames{Architecture::falcon_h1, Role::gate, "feed_forward.gate_proj.weight", ""},
    OtherNames{Architecture::falcon_h1, Role::up, "feed_forward.up_proj.weight", ""},
    OtherNames{Architecture::falcon_h1, Role::down, "feed_forward.down_proj.weight", ""},
    OtherNames{Architecture::bert, Role::token_embedding, "bert.embeddings.word_embeddings.weight", ""},
    OtherNames{Architecture::bert, Role::position_embedding, "bert.embeddings.position_embeddings.weight", ""},
    OtherNames{Architecture::bert, Role::token_types, "bert.embeddings.token_type_embeddings.weight", ""},
    OtherNames{Architecture::bert, Role::embedding_norm, "bert.embeddings.LayerNorm.weight", ""},
    OtherNames{Architecture::bert, Role::head_dense, "bert.pooler.dense.weight", ""},
    OtherNames{Architecture::bert, Role::head_output, "classifier.weight", ""},
    OtherNames{Architecture::bert, Role::query, "attention.self.query.weight", ""},
    OtherNames{Architecture::bert, Role::key, "attention.self.key.weight", ""},
    OtherNames{Architecture::bert, Role::value, "attention.self.value.weight", ""},
    OtherNames{Architecture::bert, Role::attention_output, "attention.output.dense.weight", ""},
    OtherNames{Architecture::bert, Role::attention_post_norm, "attention.output.LayerNorm.weight",
               "attn_output_norm.weight"},
    OtherNames{Architecture::bert, Role::up, "intermediate.dense.weight", ""},
    OtherNames{Architecture::bert, Role::down, "output.dense.weight", ""},
    OtherNames{Architecture::bert, Role::feed_forward_post_norm, "output.LayerNorm.weight", "layer_output_norm.weight"},
    OtherNames{Architecture::nomic_bert, Role::token_embedding, "embeddings.word_embeddings.weight", ""},
    OtherNames{Architecture::nomic_bert, Role::token_types, "embeddings.token_type_embeddings.weight", ""},
    OtherNames{Architecture::nomic_bert, Role::embedding_norm, "emb_ln.weight", ""},
    OtherNames{Architecture::nomic_bert, Role::attention_output, "attn.out_proj.weight", ""},
    OtherNames{Architecture::nomic_bert, Role::attention_post_norm, "norm1.weight", "attn_output_norm.weight"},
    OtherNames{Architecture::nomic_bert, Role::gate, "mlp.fc12.weight", ""},
    OtherNames{Architecture::nomic_bert, Role::up, "mlp.fc11.weight", ""},
    OtherNames{Architecture::nomic_bert, Role::down, "mlp.fc2.weight", ""},
    OtherNames{Architecture::nomic_bert, Role::feed_forward_post_norm, "norm2.weight", "layer_output_norm.weight"},
    OtherNames{Architecture::modernbert, Role::token_embedding, "model.embeddings.tok_embeddings.weight", ""},
    OtherNames{Architecture::modernbert, Role::embedding_norm, "model.embeddings.norm.weight", ""},
    OtherNames{Architecture::modernbert, Role::output_norm, "model.final_norm.weight", ""},
    OtherNames{Architecture::modernbert, Role::head_dense, "head.dense.weight", ""},
    OtherNames{Architecture::modernbert, Role::head_norm, "head.norm.weight", ""},
    OtherNames{Architecture::modernbert, Role::head_output, "classifier.weight", ""},
    OtherNames{Architecture::modernbert, Role::attention_norm, "attn_norm.weight", ""},
    OtherNames{Architecture::modernbert, Role::attention_output, "attn.Wo.weight", ""},
    OtherNames{Architecture::modernbert, Role::feed_forward_norm, "mlp_norm.weight", ""},
    OtherNames{Architecture::modernbert, Role::down, "mlp.Wo.weight", ""},
};

constexpr std::pair<Role, Role> kWeightOfBias[] = {
    {Role::embedding_norm_bias, Role::embedding_norm},
    {Role::output_norm_bias, Role::output_norm},
    {Role::head_dense_bias, Role::head_dense},
    {Role::head_output_bias, Role::head_output},
    {Role::attention_norm_bias, Role::attention_norm},
    {Role::attention_post_norm_bias, Role::attention_post_norm},
    {Role::query_bias, Role::query},
    {Role::key_bias, Role::key},
    {Role::value_bias, Role::value},
    {Role::attention_output_bias, Role::attention_output},
    {Role::feed_forward_norm_bias, Role::feed_forward_norm},
    {Role::feed_forward_post_norm_bias, Role::feed_forward_post_norm},
    {Role::up_bias, Role::up},
    {Role::down_bias, Role::down},
};

/// Architectures that have the names of another one.
constexpr std::pair<Architecture, Architecture> kNamesakes[] = {
    {Architecture::lfm2_moe, Architecture::lfm2},
    {Architecture::qwen3_5, Architecture::qwen3_next},
    {Architecture::qwen3_5_moe, Architecture::qwen3_next},
    {Architecture::mamba2, Architecture::mamba},
    {Architecture::granitemoehybrid, Architecture::granitemoe},
};

/// Dense layers after pooling, named as if there were two; empty for other roles.
std::string dense_name(const Traits& traits, bool gguf, Role role) {
  const bool first = role == Role::head_dense || role == Role::head_dense_bias;
  const bool bias = role == Role::head_dense_bias || role == Role::head_output_bias;
  if (traits.head.scores || (!first && role != Role::head_output && !bias)) return {};
  const std::size_t number = first || traits.head.hidden == 0 ? 0 : 1;
  const std::string_view end = bias ? "bias" : "weight";
  return gguf ? fmt::format("dense_{}.{}", number + 2, end)
              : fmt::format("{}.linear.{}", files::kDenseNames[number], end);
}

/// Empty if the architecture has no name of its own for it.
std::string other_name(const Traits& traits, bool gguf, Role role) {
  const auto* const bias = std::ranges::find(kWeightOfBias, role, &std::pair<Role, Role>::first);
  const bool is_bias = bias != std::end(kWeightOfBias);
  const Role weight = is_bias ? bias->second : role;
  // falcon with one norm for both branches calls it as others do.
  if (traits.shared_norm && weight == Role::attention_norm) return {};
  const auto* const like =
      std::ranges::find(kNamesakes, traits.architecture, &std::pair<Architecture, Architecture>::first);
  const Architecture named = like == std::end(kNamesakes) ? traits.architecture : like->second;
  for (const OtherNames& row : kOtherNames) {
    if (row.architecture != named || row.role != weight) continue;
    std::string name(gguf ? row.gguf : row.folder);
    if (is_bias && !name.empty()) name.replace(name.rfind('.'), std::string::npos, ".bias");
    return name;
  }
  return {};
}

}  // namespace

std::string tensor_name(const Traits& traits, bool gguf, Role role) {
  if (std::string dense = dense_name(traits, gguf, role); !dense.empty()) return dense;
  if (std::string other = other_name(traits, gguf, role); !other.empty()) return other;
  for (const RoleNames& row : kNames) {
    if (row.role != role) continue;
    if (gguf) return std::string(row.gguf);
    return std::string(traits.architecture == Architecture::gpt2 ? row.gpt2 : row.folder);
  }
  return {};
}

std::string name_in_block(const Traits& traits, bool gguf, std::size_t block, std::string_view name) {
  if (gguf) return fmt::format("blk.{}.{}", block, name);
  return fmt::format("{}{}.{}", facts(traits.architecture).block_prefix, block, name);
}

std::string_view feed_forward_name(Role role) noexcept {
  if (role == Role::gate || role == Role::gate_bias) return "gate";
  return role == Role::down || role == Role::down_bias ? "down" : "up";
}

std::string expert_name(const Traits& traits, Role role, std::size_t expert) {
  const bool blocks_of_experts =
      traits.architecture == Architecture::mixtral || traits.architecture == Architecture::minimax_m2;
  if (blocks_of_experts || traits.architecture == Architecture::lfm2_moe) {
    const std::string_view prefix = blocks_of_experts ? "block_sparse_moe" : "feed_forward";
    const int number = role == Role::gate ? 1 : role == Role::down ? 2 : 3;
    return fmt::format("{}.experts.{}.w{}.weight", prefix, expert, number);
  }
  const std::string_view layer = traits.architecture == Architecture::nemotron_h ? "mixer" : "mlp";
  return fmt::format("{}.experts.{}.{}_proj.weight", layer, expert, feed_forward_name(role));
}

}  // namespace imago::models
