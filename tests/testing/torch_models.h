#pragma once

// Small models that transformers made: reference/torch/models/NAME, or what tests/data has of them.

#include <array>
#include <filesystem>
#include <optional>
#include <string>

namespace imago::testing {

inline constexpr std::array kTorchModels = {"gemma2_softcap_f32",      "gpt2_f32",        "granite_f32",
                                            "llama3_rope_scaling_f16", "llama_tied_f32",  "llama_untied_bf16",
                                            "mistral_sliding_f32",     "mixtral_moe_f32", "olmo2_f32",
                                            "phi3_fused_f32",          "qwen2_bias_f32",  "qwen3_moe_f32",
                                            "qwen3_qknorm_f32",        "smollm3_nope_f32"};

/// The folder in which that file of the model is, if it is here.
inline std::optional<std::string> find_torch_model(const std::string& name,
                                                   const std::string& file = "model.safetensors") {
  namespace fs = std::filesystem;
  for (const fs::path& root :
       {fs::path(IMAGO_TEST_DATA) / "torch/models", fs::path(IMAGO_SHARED) / "reference/torch/models"}) {
    if (fs::exists(root / name / file)) return fs::canonical(root / name).string();
  }
  return std::nullopt;
}

inline std::string missing_torch_model(const std::string& name) {
  return "no reference data: torch/models/" + name + "/model.safetensors";
}

}  // namespace imago::testing
