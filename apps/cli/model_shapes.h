#pragma once

// The shapes of published models, for `imago synth --like`: what their config.json says about sizes. Lists with an
// entry for each block are repeated where a model gets another number of blocks.

#include <string_view>

namespace imago::cli {

struct ModelShape {
  std::string_view name;
  std::string_view about;
  std::string_view config;
};

// By name, but for the first, which is the default.
inline constexpr ModelShape kModelShapes[] = {
    {"llama", "Llama of a billion weights",
     R"({"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "intermediate_size": 8192,
         "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 4096,
         "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true})"},
    {"deepseek_v2_lite", "DeepSeek-V2-Lite",
     R"({"model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27, "intermediate_size": 10944,
         "num_attention_heads": 16, "num_key_value_heads": 16, "kv_lora_rank": 512, "q_lora_rank": null,
         "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64,
         "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "first_k_dense_replace": 1,
         "norm_topk_prob": false, "routed_scaling_factor": 1.0, "topk_method": "greedy", "vocab_size": 102400,
         "max_position_embeddings": 163840, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
         "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32,
         "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707}})"},
    {"gemma3_1b", "Gemma 3 1B",
     R"({"model_type": "gemma3_text", "hidden_size": 1152, "num_hidden_layers": 26, "intermediate_size": 6912,
         "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "query_pre_attn_scalar": 256,
         "vocab_size": 262144, "max_position_embeddings": 32768, "sliding_window": 512, "sliding_window_pattern": 6,
         "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0})"},
    {"gemma3_4b", "Gemma 3 4B",
     R"({"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "intermediate_size": 10240,
         "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256,
         "vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window": 1024, "sliding_window_pattern": 6,
         "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
         "rope_scaling": {"rope_type": "linear", "factor": 8.0}})"},
    {"gpt_oss_20b", "gpt-oss-20b",
     R"({"model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24, "intermediate_size": 2880,
         "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "attention_bias": true,
         "num_local_experts": 32, "num_experts_per_tok": 4, "vocab_size": 201088, "max_position_embeddings": 131072, "sliding_window": 128,
         "rms_norm_eps": 1e-5, "rope_theta": 150000.0,
         "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
         "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false}})"},
    {"lfm2_1.2b", "LFM2 1.2B",
     R"({"model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16, "intermediate_size": 8192,
         "block_auto_adjust_ff_dim": false, "num_attention_heads": 32, "num_key_value_heads": 8, "conv_L_cache": 3,
         "conv_bias": false, "vocab_size": 65536, "max_position_embeddings": 128000, "norm_eps": 1e-5,
         "rope_theta": 1000000.0, "tie_word_embeddings": true,
         "layer_types": ["conv", "conv", "full_attention", "conv", "conv", "full_attention", "conv", "conv",
         "full_attention", "conv", "full_attention", "conv", "full_attention", "conv", "full_attention", "conv"]})"},
    {"lfm2_moe_8b", "LFM2 8B-A1B",
     R"({"model_type": "lfm2_moe", "hidden_size": 2048, "num_hidden_layers": 24, "intermediate_size": 7168,
         "moe_intermediate_size": 1792, "num_experts": 32, "num_experts_per_tok": 4, "num_dense_layers": 2,
         "norm_topk_prob": true, "use_expert_bias": true, "routed_scaling_factor": 1.0, "num_attention_heads": 32,
         "num_key_value_heads": 8, "conv_L_cache": 3, "conv_bias": false, "vocab_size": 65536,
         "max_position_embeddings": 128000, "norm_eps": 1e-5, "rope_theta": 1000000.0, "tie_word_embeddings": true,
         "layer_types": ["conv", "conv", "full_attention", "conv", "conv", "conv", "full_attention", "conv", "conv",
         "conv", "full_attention", "conv", "conv", "conv", "full_attention", "conv", "conv", "conv", "full_attention",
         "conv", "conv", "full_attention", "conv", "conv"]})"},
    {"mamba2_2.7b", "Mamba-2 2.7B",
     R"({"model_type": "mamba2", "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 128, "conv_kernel": 4,
         "expand": 2, "n_groups": 1, "num_heads": 80, "head_dim": 64, "use_conv_bias": true, "use_bias": false,
         "vocab_size": 50288, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true})"},
    {"mamba_2.8b", "Mamba 2.8B",
     R"({"model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 16, "conv_kernel": 4,
         "intermediate_size": 5120, "time_step_rank": 160, "use_conv_bias": true, "use_bias": false,
         "vocab_size": 50280, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true})"},
    {"olmoe", "OLMoE 1B-7B",
     R"({"model_type": "olmoe", "hidden_size": 2048, "num_hidden_layers": 16, "intermediate_size": 1024,
         "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
         "norm_topk_prob": false, "vocab_size": 50304, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
         "rope_theta": 10000.0, "tie_word_embeddings": false})"},
    {"qwen3_4b", "Qwen3 4B",
     R"({"model_type": "qwen3", "hidden_size": 2560, "num_hidden_layers": 36, "intermediate_size": 9728,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
         "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": true})"},
    {"qwen3_5_moe", "Qwen3.5 35B-A3B",
     R"({"model_type": "qwen3_5_moe_text", "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
         "num_key_value_heads": 2, "head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
         "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "num_experts": 256,
         "num_experts_per_tok": 8, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
         "full_attention_interval": 4, "partial_rotary_factor": 0.25, "vocab_size": 248320,
         "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "rope_theta": 10000000.0,
         "tie_word_embeddings": false})"},
    {"qwen3_moe", "Qwen3 30B-A3B",
     R"({"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "intermediate_size": 6144,
         "moe_intermediate_size": 768, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
         "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1,
         "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
         "tie_word_embeddings": false})"},
};

}  // namespace imago::cli
