#include "models/architectures.h"

#include <algorithm>
#include <array>

namespace imago::models {

namespace {

using kernels::Activation;

constexpr std::array<ArchitectureFacts, 12> kArchitectures = {{
    {Architecture::llama, "llama", "LlamaForCausalLM", "llama", NormKind::rms, true, false, QueryNorm::none,
     Activation::silu, true, false, true, false, 1e4},
    {Architecture::mistral, "mistral", "MistralForCausalLM", "llama", NormKind::rms, true, false, QueryNorm::none,
     Activation::silu, true, false, true, false, 1e4},
    {Architecture::qwen2, "qwen2", "Qwen2ForCausalLM", "qwen2", NormKind::rms, true, false, QueryNorm::none,
     Activation::silu, true, false, false, false, 1e4},
    {Architecture::qwen3, "qwen3", "Qwen3ForCausalLM", "qwen3", NormKind::rms, true, false, QueryNorm::head,
     Activation::silu, true, false, false, false, 1e4},
    {Architecture::qwen3_moe, "qwen3_moe", "Qwen3MoeForCausalLM", "qwen3moe", NormKind::rms, true, false,
     QueryNorm::head, Activation::silu, true, true, false, false, 1e4},
    {Architecture::phi3, "phi3", "Phi3ForCausalLM", "phi3", NormKind::rms, true, false, QueryNorm::none,
     Activation::silu, true, false, false, false, 1e4},
    {Architecture::gemma2, "gemma2", "Gemma2ForCausalLM", "gemma2", NormKind::rms, true, true, QueryNorm::none,
     Activation::gelu, true, false, false, true, 1e4},
    {Architecture::olmo2, "olmo2", "Olmo2ForCausalLM", "olmo2", NormKind::rms, false, true, QueryNorm::row,
     Activation::silu, true, false, false, false, 1e4},
    {Architecture::granite, "granite", "GraniteForCausalLM", "granite", NormKind::rms, true, false, QueryNorm::none,
     Activation::silu, true, false, true, false, 1e4},
    {Architecture::smollm3, "smollm3", "SmolLM3ForCausalLM", "smollm3", NormKind::rms, true, false, QueryNorm::none,
     Activation::silu, true, false, true, true, 2e6},
    {Architecture::mixtral, "mixtral", "MixtralForCausalLM", "llama", NormKind::rms, true, false, QueryNorm::none,
     Activation::silu, true, true, true, false, 1e6},
    {Architecture::gpt2, "gpt2", "GPT2LMHeadModel", "gpt2", NormKind::layer, true, false, QueryNorm::none,
     Activation::gelu, false, false, false, true, 0},
}};

std::string list(std::string_view ArchitectureFacts::*column) {
  std::string names;
  for (const ArchitectureFacts& row : kArchitectures) {
    const std::string_view name = row.*column;
    // "llama" stands for three architectures in GGUF.
    const auto first = std::find_if(kArchitectures.begin(), kArchitectures.end(),
                                    [&](const ArchitectureFacts& other) { return other.*column == name; });
    if (&*first != &row) continue;
    if (!names.empty()) names += ", ";
    names += name;
  }
  return names;
}

const ArchitectureFacts* find(std::string_view ArchitectureFacts::*column, std::string_view name) noexcept {
  for (const ArchitectureFacts& row : kArchitectures) {
    if (row.*column == name) return &row;
  }
  return nullptr;
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
  traits.learned_positions = row.rope_base == 0;
  if (!traits.learned_positions) traits.rope_base = row.rope_base;
  return traits;
}

}  // namespace imago::models
