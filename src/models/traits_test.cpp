// Traits of the models that transformers made, against what their configs say, read by hand.

#include "models/traits.h"

#include <gtest/gtest.h>

#include <cmath>

#include "imago/error.h"
#include "models/architectures.h"
#include "models/traits_reading.h"
#include "testing/torch_models.h"

namespace imago::models {
namespace {

using kernels::Activation;
using Kind = RopeScaling::Kind;

Traits traits_in(const std::string& model) {
  const std::optional<std::string> folder = testing::find_torch_model(model, "config.json");
  if (!folder) throw std::runtime_error("no " + model);
  return config_traits(files::JsonFile::open(*folder + "/config.json", 1 << 20));
}

/// What most of the models have in common.
Traits common(Architecture architecture) {
  Traits traits;
  traits.architecture = architecture;
  traits.blocks = 2;
  traits.width = 64;
  traits.heads = 4;
  traits.kv_heads = 2;
  traits.head_values = 16;
  traits.vocabulary = 256;
  traits.context = 128;
  traits.rotary = 16;
  traits.block.assign(traits.blocks, {.feed_forward = 128});
  traits.attention_scale = 0.25F;
  return traits;
}

TEST(Traits, Llama) {
  Traits wanted = common(Architecture::llama);
  EXPECT_EQ(traits_in("llama_untied_bf16"), wanted);
  wanted.tied_output = true;
  EXPECT_EQ(traits_in("llama_tied_f32"), wanted);
  wanted.tied_output = false;
  wanted.rope_base = 500000;
  wanted.rope_scaling = {
      .kind = Kind::llama3, .factor = 8, .original_context = 32, .low_freq_factor = 1, .high_freq_factor = 4};
  EXPECT_EQ(traits_in("llama3_rope_scaling_f16"), wanted);
}

TEST(Traits, Mistral) {
  Traits wanted = common(Architecture::mistral);
  set_windows(wanted, {8, 8});
  EXPECT_EQ(traits_in("mistral_sliding_f32"), wanted);
}

TEST(Traits, Qwen) {
  Traits wanted = common(Architecture::qwen2);
  wanted.tied_output = true;
  EXPECT_EQ(traits_in("qwen2_bias_f32"), wanted);

  wanted.architecture = Architecture::qwen3;
  wanted.query_norm = QueryNorm::head;
  wanted.head_values = wanted.rotary = 32;
  wanted.attention_scale = static_cast<float>(1 / std::sqrt(32.0));
  EXPECT_EQ(traits_in("qwen3_qknorm_f32"), wanted);

  wanted = common(Architecture::qwen3_moe);
  wanted.query_norm = QueryNorm::head;
  wanted.block.assign(2, {.feed_forward = 64, .experts = true});
  wanted.experts = 4;
  wanted.experts_used = 2;
  wanted.norm_expert_weights = false;
  EXPECT_EQ(traits_in("qwen3_moe_f32"), wanted);
}

TEST(Traits, Mixtral) {
  Traits wanted = common(Architecture::mixtral);
  wanted.norm_eps = 1e-5;
  wanted.rope_base = 1e6;
  wanted.block.assign(2, {.feed_forward = 128, .experts = true});
  wanted.experts = 4;
  wanted.experts_used = 2;
  EXPECT_EQ(traits_in("mixtral_moe_f32"), wanted);
}

TEST(Traits, Phi3) {
  Traits wanted = common(Architecture::phi3);
  wanted.norm_eps = 1e-5;
  EXPECT_EQ(traits_in("phi3_fused_f32"), wanted);
}

TEST(Traits, Gemma2) {
  Traits wanted = common(Architecture::gemma2);
  wanted.activation = Activation::gelu;
  wanted.norm_offset = 1;
  wanted.post_norms = true;
  wanted.attention_cap = 50;
  wanted.logit_cap = 30;
  wanted.embedding_scale = 8;
  set_windows(wanted, {8, 0});
  wanted.tied_output = true;
  EXPECT_EQ(traits_in("gemma2_softcap_f32"), wanted);
}

TEST(Traits, Olmo2) {
  Traits wanted = common(Architecture::olmo2);
  wanted.norm_eps = 1e-5;
  wanted.pre_norms = false;
  wanted.post_norms = true;
  wanted.query_norm = QueryNorm::row;
  EXPECT_EQ(traits_in("olmo2_f32"), wanted);
}

TEST(Traits, Exaone4) {
  Traits wanted = common(Architecture::exaone4);
  wanted.blocks = 4;
  wanted.block.assign(4, {.feed_forward = 128});
  wanted.norm_eps = 1e-5;
  wanted.pre_norms = false;
  wanted.post_norms = true;
  wanted.query_norm = QueryNorm::head;
  set_windows(wanted, {8, 8, 8, 0});
  set_rope(wanted, {true, true, true, false});
  EXPECT_EQ(traits_in("exaone4_bf16"), wanted);
}

TEST(Traits, Granite) {
  Traits wanted = common(Architecture::granite);
  wanted.attention_scale = 0.015625F;
  wanted.embedding_scale = 12;
  wanted.residual_scale = 0.22F;
  wanted.logit_scale = 0.125F;
  EXPECT_EQ(traits_in("granite_f32"), wanted);
}

TEST(Traits, Smollm3) {
  Traits wanted = common(Architecture::smollm3);
  wanted.blocks = 4;
  wanted.block.assign(4, {.feed_forward = 128});
  wanted.rope_base = 2e6;
  set_rope(wanted, {true, true, true, false});
  set_windows(wanted, {0, 0, 0, 0});
  wanted.tied_output = true;
  EXPECT_EQ(traits_in("smollm3_nope_f32"), wanted);
}

TEST(Traits, Gpt2) {
  Traits wanted = common(Architecture::gpt2);
  wanted.kv_heads = 4;
  set_feed_forward(wanted, 256);
  wanted.norm = NormKind::layer;
  wanted.norm_eps = 1e-5;
  wanted.activation = Activation::gelu;
  wanted.gated = false;
  wanted.learned_positions = true;
  wanted.rotary = 0;
  set_rope(wanted, {false, false});
  wanted.tied_output = true;
  EXPECT_EQ(traits_in("gpt2_f32"), wanted);
}

Traits parsed(const std::string& fields) {
  return config_traits(files::JsonFile::parse(
      R"({"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4, "intermediate_size": 8,
          "vocab_size": 9, "max_position_embeddings": 4096, )" +
          fields + "}",
      "config.json"));
}

TEST(Traits, OldAndNewSpellings) {
  Traits traits =
      parsed(R"("model_type": "llama", "rope_theta": 5, "rope_scaling": {"type": "linear", "factor": 2.5})");
  EXPECT_EQ(traits.rope_base, 5);
  EXPECT_EQ(traits.rope_scaling, (RopeScaling{.kind = Kind::linear, .factor = 2.5}));
  EXPECT_EQ(traits.kv_heads, 4U);
  EXPECT_FALSE(traits.tied_output);
  EXPECT_EQ(traits.norm_eps, 1e-6);
  EXPECT_EQ(parsed(R"("model_type": "llama", "rope_scaling": null)").rope_base, 1e4);

  traits = parsed(R"("model_type": "qwen2", "rope_parameters": {"rope_type": "yarn", "rope_theta": 7, "factor": 4,
                     "original_max_position_embeddings": 1024, "attention_factor": 1.5, "beta_fast": 16,
                     "truncate": false})");
  EXPECT_EQ(traits.rope_base, 7);
  EXPECT_EQ(traits.rope_scaling, (RopeScaling{.kind = Kind::yarn,
                                              .factor = 4,
                                              .original_context = 1024,
                                              .beta_fast = 16,
                                              .attention_factor = 1.5,
                                              .truncate = false}));
  traits = parsed(R"("model_type": "qwen2", "rope_scaling": {"type": "yarn", "factor": 4, "mscale": 1,
                     "mscale_all_dim": 1})");
  EXPECT_EQ(traits.rope_scaling.attention_factor, 1);
  EXPECT_EQ(traits.rope_scaling.original_context, 4096);

  traits = parsed(R"("model_type": "phi3", "partial_rotary_factor": 0.75, "original_max_position_embeddings": 4096,
                     "rope_scaling": {"type": "longrope", "short_factor": [1, 1.0], "long_factor": [1]})");
  EXPECT_EQ(traits.rotary, 12U);
  EXPECT_EQ(traits.rope_scaling, RopeScaling{});
  EXPECT_EQ(parsed(R"("model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 1, "n_ctx": 77)").context, 77U);
}

TEST(Traits, Windows) {
  using Windows = std::vector<std::size_t>;
  EXPECT_EQ(window_of_blocks(parsed(R"("model_type": "llama", "sliding_window": 5)")), Windows(4, 0));
  EXPECT_EQ(window_of_blocks(parsed(R"("model_type": "mistral", "sliding_window": null)")), Windows(4, 0));
  EXPECT_EQ(window_of_blocks(parsed(R"("model_type": "phi3", "sliding_window": 5)")), Windows(4, 5));
  EXPECT_EQ(window_of_blocks(parsed(R"("model_type": "qwen2", "sliding_window": 5)")), Windows(4, 0));
  EXPECT_EQ(window_of_blocks(parsed(R"("model_type": "qwen2", "sliding_window": 5, "use_sliding_window": true,
                      "max_window_layers": 3)")),
            (Windows{0, 0, 0, 5}));
  EXPECT_EQ(window_of_blocks(parsed(R"("model_type": "gemma2")")), (Windows{4096, 0, 4096, 0}));
  EXPECT_EQ(window_of_blocks(parsed(R"("model_type": "smollm3", "sliding_window": 5, "use_sliding_window": true)")),
            (Windows{0, 0, 0, 5}));
  EXPECT_EQ(
      window_of_blocks(parsed(R"("model_type": "smollm3", "sliding_window": 5, "layer_types": ["sliding_attention",
                      "full_attention", "full_attention", "full_attention"])")),
      (Windows{5, 0, 0, 0}));
}

TEST(Traits, CapsThatAreNullAndCapsThatAreAbsent) {
  const Traits absent = parsed(R"("model_type": "gemma2")");
  EXPECT_EQ(absent.attention_cap, 50);
  EXPECT_EQ(absent.logit_cap, 30);
  EXPECT_EQ(absent.head_values, 256U);
  const Traits none = parsed(R"("model_type": "gemma2", "attn_logit_softcapping": null, "final_logit_softcapping": 7)");
  EXPECT_EQ(none.attention_cap, 0);
  EXPECT_EQ(none.logit_cap, 7);
}

TEST(Architectures, TheTableIsInTheOrderOfTheNames) {
  for (const ArchitectureFacts& row : architectures()) {
    EXPECT_EQ(&facts(row.architecture), &row);
    EXPECT_EQ(name(row.architecture), row.model_type);
    // One type may be two architectures, of which a field of config.json chooses.
    const bool second = row.both_sides;
    EXPECT_EQ(find_model_type(row.model_type), second ? &row - 1 : &row);
  }
  EXPECT_EQ(find_gguf_architecture("gemma-embedding")->architecture, Architecture::embedding_gemma);
  EXPECT_EQ(find_gguf_architecture("llama")->architecture, Architecture::llama);
  EXPECT_EQ(find_gguf_architecture("mixtral"), nullptr);
}

}  // namespace
}  // namespace imago::models
