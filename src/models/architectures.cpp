#include "models/architectures.h"

#include <algorithm>
#include <array>

namespace imago::models {

namespace {

using kernels::Activation;

// In the order of the enum.
constexpr std::array<ArchitectureFacts, 21> kArchitectures = {{
    {.architecture = Architecture::llama,
     .model_type = "llama",
     .class_name = "LlamaForCausalLM",
     .gguf = "llama",
     .adjacent_in_gguf = true},
    {.architecture = Architecture::mistral,
     .model_type = "mistral",
     .class_name = "MistralForCausalLM",
     .gguf = "llama",
     .adjacent_in_gguf = true,
     .windows = Windows::always},
    {.architecture = Architecture::qwen2,
     .model_type = "qwen2",
     .class_name = "Qwen2ForCausalLM",
     .gguf = "qwen2",
     .windows = Windows::if_asked,
     .lists_layer_types = true},
    {.architecture = Architecture::qwen3,
     .model_type = "qwen3",
     .class_name = "Qwen3ForCausalLM",
     .gguf = "qwen3",
     .query_norm = QueryNorm::head,
     .windows = Windows::if_asked,
     .lists_layer_types = true},
    {.architecture = Architecture::qwen3_moe,
     .model_type = "qwen3_moe",
     .class_name = "Qwen3MoeForCausalLM",
     .gguf = "qwen3moe",
     .query_norm = QueryNorm::head,
     .experts = true,
     .own_expert_width = true,
     .norm_experts = false,
     .windows = Windows::if_asked},
    {.architecture = Architecture::phi3,
     .model_type = "phi3",
     .class_name = "Phi3ForCausalLM",
     .gguf = "phi3",
     .windows = Windows::always},
    {.architecture = Architecture::gemma2,
     .model_type = "gemma2",
     .class_name = "Gemma2ForCausalLM",
     .gguf = "gemma2",
     .post_norms = true,
     .activation = Activation::gelu,
     .tied_by_default = true,
     .windows = Windows::always,
     .lists_layer_types = true,
     .full_period = 2},
    {.architecture = Architecture::olmo2,
     .model_type = "olmo2",
     .class_name = "Olmo2ForCausalLM",
     .gguf = "olmo2",
     .pre_norms = false,
     .post_norms = true,
     .query_norm = QueryNorm::row,
     .full_period = 4},
    {.architecture = Architecture::granite,
     .model_type = "granite",
     .class_name = "GraniteForCausalLM",
     .gguf = "granite",
     .adjacent_in_gguf = true},
    {.architecture = Architecture::smollm3,
     .model_type = "smollm3",
     .class_name = "SmolLM3ForCausalLM",
     .gguf = "smollm3",
     .adjacent_in_gguf = true,
     .tied_by_default = true,
     .rope_base = 2e6,
     .windows = Windows::if_asked,
     .lists_layer_types = true,
     .no_rope_period = 4},
    {.architecture = Architecture::mixtral,
     .model_type = "mixtral",
     .class_name = "MixtralForCausalLM",
     .gguf = "llama",
     .experts = true,
     .adjacent_in_gguf = true,
     .rope_base = 1e6,
     .windows = Windows::always},
    {.architecture = Architecture::gpt2,
     .model_type = "gpt2",
     .class_name = "GPT2LMHeadModel",
     .gguf = "gpt2",
     .norm = NormKind::layer,
     .activation = Activation::gelu,
     .gated = false,
     .tied_by_default = true,
     .rope_base = 0},
    {.architecture = Architecture::exaone4,
     .model_type = "exaone4",
     .class_name = "Exaone4ForCausalLM",
     .gguf = "exaone4",
     .pre_norms = false,
     .post_norms = true,
     .query_norm = QueryNorm::head,
     .windows = Windows::always,
     .lists_layer_types = true,
     .full_period = 4,
     .full_without_rope = true},
    {.architecture = Architecture::olmoe,
     .model_type = "olmoe",
     .class_name = "OlmoeForCausalLM",
     .gguf = "olmoe",
     .query_norm = QueryNorm::row,
     .experts = true,
     .norm_experts = false,
     .norm_experts_in_gguf = false},
    {.architecture = Architecture::granitemoe,
     .model_type = "granitemoe",
     .class_name = "GraniteMoeForCausalLM",
     .gguf = "granitemoe",
     .experts = true,
     .adjacent_in_gguf = true},
    {.architecture = Architecture::glm4,
     .model_type = "glm4",
     .class_name = "Glm4ForCausalLM",
     .gguf = "glm4",
     .post_norms = true,
     .adjacent = true,
     .rotary_share = 0.5},
    {.architecture = Architecture::glm4_moe,
     .model_type = "glm4_moe",
     .class_name = "Glm4MoeForCausalLM",
     .gguf = "glm4moe",
     .query_norm = QueryNorm::head,
     .experts = true,
     .own_expert_width = true,
     .expert_scores = ExpertScores::sigmoid,
     .choice_bias = true,
     .two_judge_group = true,
     .norm_experts_in_gguf = false,
     .states_routing = true,
     .rotary_share = 0.5},
    {.architecture = Architecture::minimax_m2,
     .model_type = "minimax_m2",
     .class_name = "MiniMaxM2ForCausalLM",
     .gguf = "minimax-m2",
     .query_norm = QueryNorm::row,
     .experts = true,
     .expert_scores = ExpertScores::sigmoid,
     .choice_bias = true,
     .rope_base = 5e6},
    {.architecture = Architecture::gpt_oss,
     .model_type = "gpt_oss",
     .class_name = "GptOssForCausalLM",
     .gguf = "gpt-oss",
     .activation = Activation::clamped_swish,
     .experts = true,
     .feed_forward_bias = true,
     .attention_sinks = true,
     .rope_base = 1.5e5,
     .windows = Windows::always,
     .lists_layer_types = true,
     .full_period = 2},
    {.architecture = Architecture::deepseek_v2,
     .model_type = "deepseek_v2",
     .class_name = "DeepseekV2ForCausalLM",
     .gguf = "deepseek2",
     .latent = true,
     .experts = true,
     .own_expert_width = true,
     .norm_experts = false,
     .norm_experts_in_gguf = false,
     .states_routing = true,
     .adjacent = true},
    {.architecture = Architecture::deepseek_v3,
     .model_type = "deepseek_v3",
     .class_name = "DeepseekV3ForCausalLM",
     .gguf = "deepseek2",
     .latent = true,
     .experts = true,
     .own_expert_width = true,
     .expert_scores = ExpertScores::sigmoid,
     .choice_bias = true,
     .two_judge_group = true,
     .norm_experts_in_gguf = false,
     .states_routing = true,
     .adjacent = true},
}};

const ArchitectureFacts* find(std::string_view ArchitectureFacts::*column, std::string_view name) noexcept {
  const auto row = std::ranges::find(kArchitectures, name, column);
  return row == kArchitectures.end() ? nullptr : &*row;
}

/// The names of a column, each once: "llama" stands for three architectures in GGUF.
std::string list(std::string_view ArchitectureFacts::*column) {
  std::string names;
  for (const ArchitectureFacts& row : kArchitectures) {
    if (find(column, row.*column) == &row) names.append(names.empty() ? "" : ", ").append(row.*column);
  }
  return names;
}

}  // namespace

std::span<const ArchitectureFacts> architectures() noexcept { return kArchitectures; }

const ArchitectureFacts& facts(Architecture architecture) noexcept {
  return kArchitectures[static_cast<std::size_t>(architecture)];
}

std::string_view name(Architecture architecture) noexcept { return facts(architecture).model_type; }

const ArchitectureFacts* find_model_type(std::string_view model_type) noexcept {
  return find(&ArchitectureFacts::model_type, model_type);
}
const ArchitectureFacts* find_gguf_architecture(std::string_view name) noexcept {
  return find(&ArchitectureFacts::gguf, name);
}

std::string known_model_types() { return list(&ArchitectureFacts::model_type); }
std::string known_gguf_architectures() { return list(&ArchitectureFacts::gguf); }

Traits traits_of(Architecture architecture) {
  const ArchitectureFacts& row = facts(architecture);
  Traits traits;
  traits.architecture = architecture;
  traits.norm = row.norm;
  traits.pre_norms = row.pre_norms;
  traits.post_norms = row.post_norms;
  traits.query_norm = row.query_norm;
  traits.activation = row.activation;
  traits.gated = row.gated;
  if (row.adjacent) traits.rope_pairs = kernels::RopePairs::adjacent;
  traits.expert_scores = row.expert_scores;
  traits.choice_bias = row.choice_bias;
  traits.attention_sinks = row.attention_sinks;
  traits.two_judge_group = row.two_judge_group;
  traits.learned_positions = row.rope_base == 0;
  if (!traits.learned_positions) traits.rope_base = row.rope_base;
  return traits;
}

}  // namespace imago::models
