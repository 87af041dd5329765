#pragma once

// Small models that transformers made: torch/models/NAME and torch/more/NAME of the reference data.

#include <array>
#include <filesystem>
#include <optional>
#include <string>

#include "testing/reference.h"

namespace imago::testing {

inline constexpr std::array kTorchModels = {"gemma2_softcap_f32",      "gpt2_f32",        "granite_f32",
                                            "llama3_rope_scaling_f16", "llama_tied_f32",  "llama_untied_bf16",
                                            "mistral_sliding_f32",     "mixtral_moe_f32", "olmo2_f32",
                                            "phi3_fused_f32",          "qwen2_bias_f32",  "qwen3_moe_f32",
                                            "qwen3_qknorm_f32",        "smollm3_nope_f32"};

/// Those of torch/more that imago runs, alphabetically.
inline constexpr std::array kMoreModels = {"cohere2_bf16",     "deepseek_v2_lite_bf16",
                                           "deepseek_v3_bf16", "ernie4_5_bf16",
                                           "exaone4_bf16",     "falcon_bf16",
                                           "falcon_h1_bf16",   "gemma3_bf16",
                                           "gemma3n_bf16",     "gemma4_bf16",
                                           "gemma4_moe_bf16",  "glm4_bf16",
                                           "glm4_moe_bf16",    "gpt_neox_bf16",
                                           "gpt_oss_bf16",     "granite_hybrid_bf16",
                                           "granite_moe_bf16", "hunyuan_dense_bf16",
                                           "lfm2_bf16",        "lfm2_moe_bf16",
                                           "mamba2_bf16",      "mamba_bf16",
                                           "minimax_m2_bf16",  "ministral3_bf16",
                                           "nemotron_h_bf16",  "olmo3_bf16",
                                           "olmoe_bf16",       "phi2_bf16",
                                           "qwen3_5_bf16",     "qwen3_5_moe_bf16",
                                           "qwen3_next_bf16",  "stablelm_bf16",
                                           "starcoder2_bf16"};

/// Those of torch/more that make embeddings and no text.
inline constexpr std::array kEmbeddingModels = {"bert_bf16", "modernbert_bf16", "nomic_bert_bf16",
                                                "qwen3_embedding_bf16"};

/// Those that tests make up and compute in plain loops.
inline constexpr std::array kOwnModels = {"embedding_gemma_test"};

/// The folder of the model, if it holds that file.
inline std::optional<std::string> find_torch_model(const std::string& name,
                                                   const std::string& file = "model.safetensors") {
  std::optional<std::string> found = find_reference("torch/models/" + name + "/" + file);
  if (!found) found = find_reference("torch/more/" + name + "/" + file);
  return found ? std::optional(std::filesystem::path(*found).parent_path().string()) : std::nullopt;
}

inline std::string missing_torch_model(const std::string& name) {
  return missing_reference("torch/models/" + name + "/model.safetensors");
}

}  // namespace imago::testing
