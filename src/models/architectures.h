#pragma once

// What is fixed about an architecture, whatever a file says: one row each. Adding one starts here
// (docs/formats/models.md).

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "models/traits.h"

namespace imago::models {

/// Attention and feed-forward layer side by side: never, always, or as the file says.
enum class Parallel : std::uint8_t { never, always, stated };

/// Which blocks have the `sliding_window` of a config.json that does not list them.
enum class Windows : std::uint8_t { none, always, if_asked };  // if_asked: `use_sliding_window` is true

struct ArchitectureFacts {
  Architecture architecture;
  std::string_view model_type;              ///< as config.json states it
  std::string_view class_name;              ///< in `architectures` of config.json
  std::string_view gguf;                    ///< `general.architecture`; mistral and mixtral are "llama" there
  std::string_view gguf_with_experts = {};  ///< where models with experts have another name there

  NormKind norm = NormKind::rms;
  bool pre_norms = true, post_norms = false;
  QueryNorm query_norm = QueryNorm::none;
  kernels::Activation activation = kernels::Activation::silu;
  bool gated = true;
  bool latent = false;  ///< latent attention
  bool experts = false;
  bool one_branch = false;      ///< a block is a mixer or a feed-forward layer, with or without experts, and not both
  bool experts_beside = false;  ///< some models have experts beside their dense feed-forward layers
  Parallel parallel = Parallel::never;
  bool shared_norm = false;        ///< where they are side by side, one norm serves both
  bool norm_bias = false;          ///< layer norms have biases
  bool norms_around_zero = false;  ///< norms multiply by 1 + their weights in folders
  bool value_norm = false;         ///< heads of values are normed, without weights
  bool block_scale = false;        ///< blocks end with a number that the stream is multiplied by
  bool shared_caches = false;      ///< the last blocks may attend to keys and values of earlier ones
  bool query_norm_turned = false;  ///< norms of queries and keys come after the rotation
  bool feed_forward_bias = false;  ///< layers without a gate, or experts and routers, have biases
  bool output_bias = false;        ///< logits have a bias
  bool encoder = false;            ///< tokens see all of their text, and there is no output matrix
  bool both_sides = false;         ///< likewise, of a decoder that was made one
  bool sum_norms = false;          ///< norms come after the residual sums
  bool own_expert_width = false;   ///< config.json states the width of experts apart, GGUF that of all chosen ones
  ExpertScores expert_scores = ExpertScores::softmax;
  bool choice_bias = false;
  bool two_judge_group = false;
  bool norm_experts = true;          ///< what a config.json without `norm_topk_prob` means
  bool norm_experts_in_gguf = true;  ///< likewise without `expert_weights_norm`
  bool attention_sinks = false;
  bool states_routing = false;    ///< GGUF has the dense blocks, groups, norm and scale of experts
  bool adjacent_in_gguf = false;  ///< GGUF has the rows of q and k reordered so that neighbours turn together
  bool tied_by_default = false;   ///< what a config.json without `tie_word_embeddings` means
  bool adjacent = false;          ///< neighbours turn together, in folders too
  double rotary_share = 1;        ///< what a config.json without `partial_rotary_factor` means
  bool yarn_truncates = true;     ///< what a GGUF file with yarn means that does not say; llama.cpp rounds in any case
  double rope_base = 1e4;         ///< what a config.json without `rope_theta` means; 0: learned positions

  Windows windows = Windows::none;
  bool lists_layer_types = false;  ///< config.json says in `layer_types` which blocks have a window
  std::size_t full_period = 0;     ///< the last of so many blocks has no window unless a file says so; 0: all have
  std::size_t no_rope_period = 0;  ///< the last of so many blocks does not rotate unless a file says so; 0: all do
  bool full_first = false;         ///< it is the first of so many instead
  std::string_view window_key = "sliding_window";
  std::size_t usual_window = 0;    ///< what a config.json that does not state it means
  bool full_without_rope = false;  ///< blocks without a window do not rotate where others have one
  bool two_ropes = false;          ///< blocks with a window turn in another way than those that see everything
  double window_rope_base = 0;     ///< for blocks with a window, in files that do not state it; 0: as the others

  // Names in folders that differ from those of llama; single tensors that do are listed in tensor_layout.cpp.
  std::string_view block_prefix = "model.layers.";
  std::string_view fused_qkv = {};  ///< the tensor of q, k and v where they are one
  bool grouped_qkv = false;  ///< in folders it has the queries, the key and the value of one head of keys together
  bool fused_gate_up = false;
  std::string_view eps_key = "rms_norm_eps";
  std::string_view activation_key = "hidden_act";

  std::string_view mixer_prefix =
      {};  ///< of the tensors of mixers besides attention, in folders; empty: there are none
  bool attention_gate = false;
  bool multipliers = false;  ///< Traits::multipliers
};

std::span<const ArchitectureFacts> architectures() noexcept;
const ArchitectureFacts& facts(Architecture architecture) noexcept;

/// By `model_type`; null if imago does not know it.
const ArchitectureFacts* find_model_type(std::string_view model_type) noexcept;
/// By `general.architecture`: llama for mistral and mixtral too.
const ArchitectureFacts* find_gguf_architecture(std::string_view name) noexcept;

/// "llama, mistral, …", for messages.
std::string known_model_types();
std::string known_gguf_architectures();

/// `general.architecture` of a model.
std::string_view gguf_name(const Traits& traits) noexcept;

/// Traits with all that the architecture alone decides.
Traits traits_of(Architecture architecture);

}  // namespace imago::models
