// Configs and metadata from strangers: one row per rule (threats.md 53), in both forms.

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "imago/error.h"
#include "models/recipe_parts.h"
#include "models/traits_reading.h"
#include "testing/temp_dir.h"

namespace imago::models {
namespace {

using nlohmann::json;

json good_config(const std::string& model_type = "llama") {
  if (model_type == "gpt2") {
    return {{"model_type", "gpt2"}, {"n_embd", 64},      {"n_head", 4},
            {"n_layer", 2},         {"n_positions", 32}, {"vocab_size", 100}};
  }
  json config = {{"model_type", model_type}, {"hidden_size", 64},       {"num_attention_heads", 4},
                 {"num_hidden_layers", 2},   {"intermediate_size", 96}, {"vocab_size", 100},
                 {"rms_norm_eps", 1e-5},     {"rope_theta", 1e4},       {"max_position_embeddings", 128},
                 {"head_dim", 16},           {"num_key_value_heads", 2}};
  if (model_type == "mixtral" || model_type == "qwen3_moe") {
    config["num_local_experts"] = 4;
    config["num_experts_per_tok"] = 2;
    config["moe_intermediate_size"] = 32;
  }
  return config;
}

std::string problem_of(const std::string& text) {
  try {
    config_traits(files::JsonFile::parse(text, "config.json"));
  } catch (const FormatError& error) {
    return std::string("format: ") + error.what();
  } catch (const UnsupportedError& error) {
    return std::string("unsupported: ") + error.what();
  }
  return "no error";
}

struct Case {
  const char* model_type;
  json change;  ///< merged into the good config; null removes a key
  const char* problem;
};

TEST(HostileConfig, TheConfigsToChangeAreGood) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "phi3", "gemma2", "olmo2", "granite",
                           "smollm3", "mixtral", "gpt2"}) {
    EXPECT_EQ(problem_of(good_config(type).dump()), "no error") << type;
  }
}

TEST(HostileConfig, WindowsWithoutARopeBaseTurnAsOtherBlocks) {
  json config = good_config("olmo3");
  config["sliding_window"] = 8;
  config.erase("rope_theta");
  config["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 5e5}}},
                               {"sliding_attention", {{"rope_type", "default"}}}};
  const Traits traits = config_traits(files::JsonFile::parse(config.dump(), "config.json"));
  EXPECT_EQ(traits.rope_base, 5e5);
  EXPECT_EQ(traits.window_rope, std::nullopt);
}

TEST(HostileConfig, DenseBlocksBetweenExpertsAreWritten) {
  json config = good_config("qwen3_moe");
  config["num_hidden_layers"] = 4;
  config["decoder_sparse_step"] = 2;
  const Traits traits = config_traits(files::JsonFile::parse(config.dump(), "config.json"));
  const std::string written = config_text(traits, {.dense_feed_forward = 96});
  EXPECT_EQ(json::parse(written).at("mlp_only_layers"), json({0, 2}));
  EXPECT_EQ(config_traits(files::JsonFile::parse(written, "config.json")), traits);
  config["decoder_sparse_step"] = 5;
  EXPECT_NE(problem_of(config.dump()).find("unsupported: "), std::string::npos) << problem_of(config.dump());
}

TEST(HostileConfig, ExpertsOfModelsWithoutAttentionAreChecked) {
  json config = {{"model_type", "nemotron_h"},
                 {"hidden_size", 64},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"head_dim", 16},
                 {"intermediate_size", 128},
                 {"layers_block_type", {"linear_attention", "moe"}},
                 {"conv_kernel", 4},
                 {"mamba_num_heads", 8},
                 {"mamba_head_dim", 16},
                 {"n_groups", 2},
                 {"ssm_state_size", 16},
                 {"mamba_hidden_act", "silu"},
                 {"mlp_hidden_act", "relu2"},
                 {"n_routed_experts", 4},
                 {"num_experts_per_tok", 2},
                 {"moe_intermediate_size", 32},
                 {"moe_shared_expert_intermediate_size", 48},
                 {"layer_norm_epsilon", 1e-5},
                 {"max_position_embeddings", 128},
                 {"vocab_size", 100}};
  EXPECT_EQ(problem_of(config.dump()), "no error");
  config["num_experts_per_tok"] = 5;
  EXPECT_EQ(problem_of(config.dump()),
            "format: config.json: at byte 0: num_experts_per_tok is 5; it must be from 1 to n_routed_experts = 4");
}

TEST(HostileConfig, Case53) {
  const std::vector<Case> cases = {
      {"llama", {{"model_type", nullptr}}, "format: config.json: at byte 0: 'model_type' is missing"},
      {"llama",
       {{"model_type", "rwkv"}},
       "unsupported: config.json: models of type 'rwkv' are not supported; known are llama, mistral, qwen2"},
      {"llama", {{"model_type", 7}}, "model_type must be a string"},
      {"llama", {{"num_attention_heads", 0}}, "num_attention_heads must be from 1 to 16384, not 0"},
      {"llama", {{"num_attention_heads", -4}}, "num_attention_heads must be from 1 to 16384, not -4"},
      {"llama", {{"num_attention_heads", "4"}}, "num_attention_heads must be a number"},
      {"llama", {{"num_attention_heads", 1.5}}, "num_attention_heads must be a whole number, not 1.5"},
      {"llama", {{"num_hidden_layers", 0}}, "num_hidden_layers must be from 1 to 4096, not 0"},
      {"llama", {{"num_hidden_layers", 1000000000}}, "num_hidden_layers must be from 1 to 4096, not 1000000000"},
      {"llama", {{"num_hidden_layers", nullptr}}, "'num_hidden_layers' is missing"},
      {"llama", {{"hidden_size", -1}}, "hidden_size must be from 1 to 1048576, not -1"},
      {"llama",
       {{"hidden_size", 66}, {"head_dim", nullptr}},
       "hidden_size is 66, which is not a multiple of num_attention_heads = 4"},
      {"gpt2", {{"n_embd", 66}}, "n_embd is 66, which is not a multiple of n_head = 4"},
      {"llama",
       {{"num_key_value_heads", 3}},
       "num_attention_heads is 4, which is not a multiple of num_key_value_heads = 3"},
      {"llama", {{"num_key_value_heads", 8}}, "not a multiple of num_key_value_heads = 8"},
      {"llama", {{"head_dim", 15}}, "gives 15 values of a head that turn; it must be an even number from 2 to the 15"},
      {"phi3", {{"partial_rotary_factor", 0.2}}, "partial_rotary_factor gives 3 values of a head that turn"},
      {"phi3", {{"partial_rotary_factor", 0.01}}, "partial_rotary_factor gives 0 values"},
      {"phi3", {{"partial_rotary_factor", 1.5}}, "partial_rotary_factor must be above 0 and at most 1, not 1.5"},
      {"llama", {{"vocab_size", 0}}, "vocab_size must be from 1 to 16777216, not 0"},
      {"llama", {{"intermediate_size", 1e9}}, "intermediate_size must be from 1 to 4194304"},
      {"llama", {{"max_position_embeddings", 1e10}}, "max_position_embeddings must be from 1 to 2147483647"},
      {"llama", {{"rms_norm_eps", 0}}, "rms_norm_eps must be above 0 and at most 1, not 0"},
      {"llama", {{"rms_norm_eps", -1e-5}}, "rms_norm_eps must be above 0 and at most 1"},
      {"gpt2", {{"layer_norm_epsilon", 2}}, "layer_norm_epsilon must be above 0 and at most 1, not 2"},
      {"llama", {{"rope_theta", 0}}, "rope_theta must be above 0"},
      {"llama", {{"rope_theta", -1e4}}, "rope_theta must be above 0"},
      {"llama", {{"rope_parameters", {{"rope_theta", -1}}}}, "rope_parameters.rope_theta must be above 0"},
      {"llama", {{"rope_scaling", 4}}, "rope_scaling"},
      {"llama", {{"rope_scaling", {{"type", "linear"}}}}, "'rope_scaling.factor' is missing"},
      {"llama", {{"rope_scaling", {{"type", "linear"}, {"factor", -2}}}}, "rope_scaling.factor must be above 0"},
      {"llama",
       {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2}}}},
       "unsupported: config.json: rope scaling of type 'dynamic' is not supported; known are linear, llama3 and yarn"},
      {"phi3",
       {{"rope_scaling", {{"type", "longrope"}, {"short_factor", {1.1}}, {"long_factor", {2}}}}},
       "unsupported: config.json: rope scaling of type 'longrope'"},
      {"llama",
       {{"rope_parameters",
         {{"rope_type", "llama3"},
          {"factor", 8},
          {"low_freq_factor", 4},
          {"high_freq_factor", 4},
          {"original_max_position_embeddings", 32}}}},
       "high_freq_factor must be above low_freq_factor, but they are 4 and 4"},
      {"llama",
       {{"rope_parameters", {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}}}},
       "llama3 needs 'original_max_position_embeddings'"},
      {"llama", {{"rope_parameters", {{"full_attention", {{"rope_theta", 1}}}}}}, "a set for each kind of attention"},
      {"mixtral", {{"num_experts_per_tok", 5}}, "num_experts_per_tok is 5; it must be from 1 to num_local_experts = 4"},
      {"mixtral", {{"num_local_experts", 1000000}}, "num_local_experts must be from 1 to 4096"},
      {"mixtral", {{"num_local_experts", nullptr}}, "'num_local_experts' is missing"},
      {"qwen3_moe", {{"decoder_sparse_step", 0}}, "decoder_sparse_step must be from 1 to 4096, not 0"},
      {"qwen3_moe", {{"mlp_only_layers", {-1}}}, "an entry of mlp_only_layers must be from 0 to 4096"},
      {"mixtral", {{"first_k_dense_replace", -1}}, "first_k_dense_replace must be from 0 to 4096"},
      {"mixtral", {{"n_shared_experts", 1e9}}, "n_shared_experts must be from 0 to 4096"},
      {"mixtral", {{"n_group", 3}}, "n_group is 3, which does not divide num_local_experts = 4"},
      {"mixtral", {{"n_group", 0}}, "n_group must be from 1 to 4096, not 0"},
      {"mixtral", {{"n_group", 2}, {"topk_group", 3}}, "topk_group is 3; it must be from 1 to n_group = 2"},
      {"mixtral",
       {{"n_group", 4}, {"topk_group", 1}},
       "num_experts_per_tok is 2, and 1 groups of 1 experts are chosen from"},
      {"olmoe", {{"clip_qkv", 8.0}}, "unsupported: config.json: 'clip_qkv'"},
      {"llama", {{"swiglu_limit", 5.0}}, "unsupported: config.json: 'swiglu_limit' other than 7"},
      {"deepseek_v2",
       {{"n_routed_experts", 4}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 8}},
       "'kv_lora_rank' is missing"},
      {"llama",
       {{"hidden_act", "mish"}},
       "unsupported: config.json: activation 'mish' ('hidden_act') is not supported"},
      {"llama",
       {{"quantization_config", {{"quant_method", "bitsandbytes"}}}},
       "unsupported: config.json: the weights are quantized by 'bitsandbytes'"},
      {"llama", {{"quantization_config", json::object()}}, "quantized by 'an unnamed method'"},
      {"llama", {{"mlp_bias", true}}, "unsupported: config.json: 'mlp_bias' is true"},
      {"gpt2", {{"scale_attn_by_inverse_layer_idx", true}}, "'scale_attn_by_inverse_layer_idx' is true"},
      {"llama", {{"tie_word_embeddings", "yes"}}, "tie_word_embeddings must be"},
      {"mistral", {{"sliding_window", -5}}, "sliding_window must be from 1 to 2147483647, not -5"},
      {"qwen2", {{"layer_types", {"full_attention"}}}, "layer_types has 1 entries for 2 blocks"},
      {"qwen2", {{"layer_types", {"full_attention", "sliding_attention"}}}, "there is no sliding_window"},
      {"qwen2", {{"layer_types", {"full_attention", "linear_attention"}}}, "attention of type 'linear_attention'"},
      {"smollm3", {{"no_rope_layers", {1}}}, "no_rope_layers has 1 entries for 2 blocks"},
      {"smollm3", {{"no_rope_layers", {1, 2}}}, "an entry of no_rope_layers must be from 0 to 1, not 2"},
      {"gemma2", {{"attn_logit_softcapping", -1}}, "attn_logit_softcapping must be above 0"},
      {"gemma2", {{"query_pre_attn_scalar", 0}}, "query_pre_attn_scalar must be above 0"},
      {"granite", {{"logits_scaling", 0}}, "logits_scaling must be from 1e-06 to 1000000, with either sign, not 0"},
      {"granite", {{"residual_multiplier", 1e30}}, "residual_multiplier must be from"},
      {"ministral3",
       {{"rope_parameters", {{"rope_type", "default"}, {"llama_4_scaling_beta", 0.1}}}},
       "llama_4_scaling_beta needs 'original_max_position_embeddings'"},
      {"hunyuan_v1_dense",
       {{"head_dim", 4}, {"rope_scaling", {{"type", "dynamic"}, {"alpha", 1e6}}}},
       "alpha leads to a rope base of 1e+16"},
      {"stablelm", {{"qk_layernorm", true}}, "unsupported: config.json: 'qk_layernorm' is true"},
      {"falcon", {{"alibi", true}}, "unsupported: config.json: 'alibi' is true"},
      {"falcon", {{"parallel_attn", false}}, "unsupported: config.json: 'parallel_attn' is false"},
      {"falcon", {{"num_ln_in_parallel_attn", 3}}, "num_ln_in_parallel_attn must be from 1 to 2, not 3"},
      {"gemma4_text", {{"enable_moe_block", true}}, "'num_experts' is missing"},
      {"gemma4_text",
       {{"enable_moe_block", true}, {"num_experts", 4}, {"top_k_experts", 5}, {"moe_intermediate_size", 32}},
       "it must be from 1 to num_experts = 4"},
      {"gemma4_text",
       {{"enable_moe_block", true},
        {"num_experts", 4},
        {"top_k_experts", 2},
        {"moe_intermediate_size", 32},
        {"use_double_wide_mlp", true},
        {"layer_types", {"full_attention", "full_attention"}},
        {"num_kv_shared_layers", 1}},
       "experts beside dense layers of several widths are not supported"},
      {"gemma4_text", {{"use_bidirectional_attention", "vision"}}, "no error"},
      {"gemma4_text", {{"use_bidirectional_attention", "all"}}, "'use_bidirectional_attention' is set"},
      {"gemma2", {{"use_bidirectional_attention", true}}, "'use_bidirectional_attention' is set"},
      {"gemma3n_text", {{"layer_types", {"full_attention", "full_attention"}}}, "no error"},
      {"gemma3n_text", {{"num_kv_shared_layers", 0}, {"altup_num_inputs", 1}}, "altup_num_inputs must be 2 or more"},
      {"gemma3n_text",
       {{"num_kv_shared_layers", 0}, {"altup_num_inputs", 1000}},
       "altup_num_inputs must be from 1 to 64"},
      {"gemma3n_text", {{"num_kv_shared_layers", 0}, {"altup_active_idx", 1}}, "'altup_active_idx' other than 0"},
      {"gemma3n_text", {{"num_kv_shared_layers", 0}, {"intermediate_size", {96}}}, "has 1 entries for 2 blocks"},
      {"gemma3n_text",
       {{"num_kv_shared_layers", 0}, {"intermediate_size", {96, 0}}},
       "must be from 1 to 4194304, not 0"},
      {"gemma3n_text",
       {{"num_kv_shared_layers", 0}, {"activation_sparsity_pattern", {0, 1}}},
       "must be from 0 to below 1, not 1"},
      {"gemma3n_text", {{"num_kv_shared_layers", 0}, {"hidden_size_per_layer_input", 0}}, "of 0 is not supported"},
      {"gemma3n_text",
       {{"num_kv_shared_layers", 0}, {"vocab_size_per_layer_input", 101}},
       "vocab_size_per_layer_input must be from 1 to 100"},
      {"gemma4_text", {{"num_kv_shared_layers", 2}}, "num_kv_shared_layers must be from 0 to 1, not 2"},
      {"gemma4_text",
       {{"num_kv_shared_layers", 1}, {"layer_types", {"full_attention", "sliding_attention"}}},
       "block 1 has no keys of its own"},
      {"gemma4_text",
       {{"per_layer_config", {{"1", {{"num_key_value_heads", 3}}}}}},
       "which is not a multiple of num_key_value_heads = 3"},
      {"gemma4_text", {{"per_layer_config", {{"1", {{"head_dim", 8}}}}}}, "heads of 8 values in block 1"},
      {"gemma4_text", {{"hidden_size_per_layer_input", -1}}, "hidden_size_per_layer_input must be from 0"},
  };
  for (const Case& row : cases) {
    json config = good_config(row.model_type);
    config.merge_patch(row.change);
    const std::string problem = problem_of(config.dump());
    EXPECT_NE(problem.find(row.problem), std::string::npos) << row.change << "\n" << problem;
  }
  EXPECT_NE(problem_of("[]").find("the config must be an object"), std::string::npos) << problem_of("[]");
  // NaN is no JSON; a number too large for a double is found when it is read.
  json config = good_config();
  std::string text = config.dump();
  text.replace(text.find("1e-05"), 5, "1e999");
  EXPECT_NE(problem_of(text).find("rms_norm_eps"), std::string::npos) << problem_of(text);
}

std::vector<GgufMetadata> good_metadata(const std::string& architecture) {
  const auto key = [&](const char* name) { return architecture + "." + name; };
  std::vector<GgufMetadata> metadata = {
      {"general.architecture", architecture},
      {key("block_count"), std::uint32_t{2}},
      {key("embedding_length"), std::uint32_t{64}},
      {key("context_length"), std::uint32_t{128}},
      {key("feed_forward_length"), std::uint32_t{96}},
      {key("attention.head_count"), std::uint32_t{4}},
      {key("attention.head_count_kv"), std::uint32_t{2}},
      {key(architecture == "gpt2" ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon"), 1e-5F},
      {key("vocab_size"), std::uint32_t{100}}};
  if (architecture == "qwen3moe") {
    metadata.push_back({key("expert_count"), std::uint32_t{4}});
    metadata.push_back({key("expert_used_count"), std::uint32_t{2}});
  }
  return metadata;
}

/// `read` with the metadata of a file that is written for it.
void with_gguf(const std::vector<GgufMetadata>& metadata, const std::vector<GgufEntry>& entries,
               const std::function<void(const GgufFile&)>& read) {
  const testing::TempDir folder;
  const std::string path = (folder.path() / "m.gguf").string();
  GgufWriter writer(path, metadata, entries);
  for (const GgufEntry& entry : entries) writer.write(entry.name, std::vector<float>(entry.shape.elements()));
  writer.commit();
  read(GgufFile::open(path));
}

std::string gguf_problem(const std::vector<GgufMetadata>& metadata, const std::vector<GgufEntry>& entries = {}) {
  std::string problem = "no error";
  with_gguf(metadata, entries, [&](const GgufFile& file) {
    try {
      gguf_traits(file);
    } catch (const FormatError& error) {
      problem = std::string("format: ") + error.what();
    } catch (const UnsupportedError& error) {
      problem = std::string("unsupported: ") + error.what();
    }
  });
  return problem;
}

TEST(HostileGgufModel, TheFilesToChangeAreGood) {
  for (const char* name :
       {"llama", "qwen2", "qwen3", "qwen3moe", "phi3", "gemma2", "olmo2", "granite", "smollm3", "gpt2"}) {
    EXPECT_EQ(gguf_problem(good_metadata(name)), "no error") << name;
  }
}

struct GgufCase {
  const char* architecture;
  const char* key;
  std::optional<GgufValue> value;  ///< none: removed
  const char* problem;
};

template <class T>
GgufValue array(std::initializer_list<T> values) {
  return GgufArray::of<T>(std::span<const T>(values.begin(), values.size()));
}

TEST(HostileGgufModel, Case53) {
  const std::vector<GgufCase> cases = {
      {"llama", "block_count", std::nullopt, "llama.block_count"},
      {"llama", "block_count", std::uint32_t{0}, "llama.block_count"},
      {"llama", "block_count", std::uint32_t{1000000000}, "from 1 to 4096"},
      {"llama", "block_count", "two", "llama.block_count"},
      {"llama", "embedding_length", std::int32_t{-64}, "llama.embedding_length"},
      {"llama", "embedding_length", std::uint32_t{66}, "'llama.embedding_length' is 66, which is not a multiple of"},
      {"llama", "attention.head_count", std::uint32_t{0}, "llama.attention.head_count"},
      {"llama", "attention.head_count_kv", std::uint32_t{3},
       "which is not a multiple of llama.attention.head_count_kv = 3"},
      {"llama", "attention.head_count_kv", array<std::uint32_t>({2, 4}), "unsupported: "},
      {"llama", "attention.head_count_kv", array<std::uint32_t>({}), "'llama.attention.head_count_kv' must be"},
      {"llama", "attention.head_count_kv", array<float>({2}), "'llama.attention.head_count_kv' must be"},
      {"llama", "attention.head_count_kv", array<std::int32_t>({-1, -1}), "must be from 1 to 16384, not -1"},
      {"llama", "attention.layer_norm_rms_epsilon", 0.0F, "must be above 0 and at most 1, not 0"},
      {"llama", "attention.layer_norm_rms_epsilon", std::nanf(""), "must be above 0 and at most 1"},
      {"gpt2", "attention.layer_norm_epsilon", std::nullopt, "gpt2.attention.layer_norm_epsilon"},
      {"llama", "attention.value_length", std::uint32_t{8}, "keys of 16 and values of 8"},
      {"llama", "attention.causal", false, "is false, which is not supported for this architecture"},
      {"llama", "attention.causal", "no", "must be a bool"},
      {"llama", "rope.freq_base", -1.0F, "'llama.rope.freq_base' must be above 0"},
      {"llama", "rope.dimension_count", std::uint32_t{7}, "llama.rope.dimension_count gives 7 values"},
      {"llama", "rope.scaling.type", "longrope", "rope scaling of type 'longrope' is not supported"},
      {"llama", "rope.scaling.factor", std::nanf(""), "'llama.rope.scaling.factor' must be from 0"},
      {"llama", "expert_used_count", std::uint32_t{3}, "no error"},  // without experts it says nothing
      {"llama", "expert_count", std::uint32_t{4}, "llama.expert_used_count is 0; it must be from 1"},
      {"qwen3moe", "expert_count", std::uint32_t{1}, "qwen3moe.expert_used_count is 2; it must be from 1"},
      {"qwen3moe", "expert_count", std::uint32_t{0}, "'qwen3moe.expert_count' is missing or 0"},
      {"qwen3moe", "expert_gating_func", std::uint32_t{7}, "other than 1, softmax"},
      {"qwen3moe", "expert_group_count", std::uint32_t{3}, "qwen3moe.expert_group_count is 3, which does not divide"},
      {"qwen3moe", "nextn_predict_layers", std::uint32_t{2}, "'qwen3moe.nextn_predict_layers' is 2 of 2 blocks"},
      {"qwen3moe", "leading_dense_block_count", std::uint32_t{1}, "no error"},
      {"qwen2", "expert_count", std::uint32_t{4}, "experts in a model of architecture 'qwen2' are not supported"},
      {"llama", "vocab_size", std::uint32_t{0}, "llama.vocab_size"},
      {"llama", "vocab_size", std::nullopt, "token_embd.weight"},
      {"gemma2", "attention.sliding_window_pattern", array<bool>({true}), "has 1 entries for 2 blocks"},
      {"granite", "logit_scale", 1e30F, "'granite.logit_scale' must be from"},
      {"gemma3", "rope.dimension_count_swa", std::uint32_t{3}, "3 values of a head turn in blocks with a window"},
      {"mistral3", "attention.temperature_scale", 0.1F, "needs 'mistral3.rope.scaling.original_context_length'"},
      {"gemma4", "attention.head_count_kv", array<std::uint32_t>({2}), "has 1 entries for 2 blocks"},
      {"gemma4", "attention.head_count_kv", array<std::uint32_t>({2, 3}), "which is not a multiple of"},
      {"gemma4", "expert_count", std::uint32_t{4}, "no 'gemma4.expert_feed_forward_length'"},
      {"gemma3n", "altup.num_inputs", std::uint32_t{65}, "gemma3n.altup.num_inputs"},
      {"gemma3n", "altup.num_inputs", std::uint32_t{4}, "blk.0.laurel_l.weight"},
      {"gemma4", "attention.shared_kv_layers", std::uint32_t{2}, "gemma4.attention.shared_kv_layers"},
      {"gemma4", "attention.value_length_swa", std::uint32_t{8}, "of different widths in blocks with a window"},
  };
  for (const GgufCase& row : cases) {
    std::vector<GgufMetadata> metadata = good_metadata(row.architecture);
    const std::string key = std::string(row.architecture) + "." + row.key;
    std::erase_if(metadata, [&](const GgufMetadata& entry) { return entry.key == key; });
    if (row.value) metadata.push_back({key, *row.value});
    const std::string problem = gguf_problem(metadata);
    EXPECT_NE(problem.find(row.problem), std::string::npos) << key << "\n" << problem;
  }
  const std::string unknown = gguf_problem({{"general.architecture", "rwkv6"}});
  EXPECT_NE(
      unknown.find("architecture 'rwkv6' are not supported; known are llama, qwen2, qwen3, qwen3moe, phi3, gemma2"),
      std::string::npos)
      << unknown;
  const std::vector<GgufEntry> factors = {{"rope_factors_long.weight", gguf_tensor_type(DType::float32), Shape{8}}};
  EXPECT_NE(gguf_problem(good_metadata("phi3"), factors).find("'longrope'"), std::string::npos);
}

TEST(GgufModel, WhatOnlyTheMetadataSay) {
  const auto traits_with = [](std::vector<GgufMetadata> more, const std::string& architecture) {
    std::vector<GgufMetadata> metadata = good_metadata(architecture);
    for (GgufMetadata& entry : more) metadata.push_back({architecture + "." + entry.key, entry.value});
    Traits traits;
    with_gguf(metadata, {}, [&](const GgufFile& file) { traits = gguf_traits(file); });
    return traits;
  };
  Traits traits = traits_with({}, "llama");
  EXPECT_EQ(traits.architecture, Architecture::llama);
  EXPECT_EQ(traits.rope_pairs, kernels::RopePairs::adjacent);
  EXPECT_EQ(traits.norm_eps, 1e-5);  // and not the float32 next to it
  EXPECT_TRUE(traits.tied_output);

  EXPECT_EQ(traits_with({{"attention.sliding_window", std::uint32_t{9}}}, "llama").architecture, Architecture::mistral);
  traits = traits_with({{"expert_count", std::uint32_t{4}}, {"expert_used_count", std::uint32_t{2}}}, "llama");
  EXPECT_EQ(traits.architecture, Architecture::mixtral);
  EXPECT_EQ(traits.block.back().feed_forward, 96U);
  EXPECT_TRUE(traits.norm_expert_weights);
  EXPECT_EQ(traits_with({}, "qwen3moe").block.back().feed_forward, 48U);
  EXPECT_EQ(traits_with({{"rope.scale_linear", 4.0F}}, "llama").rope_scaling,
            (RopeScaling{.kind = RopeScaling::Kind::linear, .factor = 4}));
  traits = traits_with(
      {{"rope.scaling.type", "yarn"}, {"rope.scaling.factor", 4.0F}, {"rope.scaling.attn_factor", 2.0F}}, "qwen2");
  EXPECT_EQ(traits.rope_pairs, kernels::RopePairs::halves);
  EXPECT_EQ(traits.rope_scaling.original_context, 128);
  EXPECT_NEAR(traits.rope_scaling.attention_factor, 2 * (0.1 * std::log(4) + 1), 1e-12);
  EXPECT_EQ(window_of_blocks(traits_with({}, "gemma2")), (std::vector<std::size_t>{4096, 0}));
  EXPECT_FALSE(traits_with({{"rope.scaling.finetuned", false}}, "granite").block[0].rope);
}

}  // namespace
}  // namespace imago::models
