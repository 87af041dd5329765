// Blocks that are not attention: what config.json says of them, the steps they become, and what is wrong.

#include "models/mixers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "files/hugging_face.h"
#include "imago/error.h"
#include "models/program.h"
#include "models/traits_reading.h"
#include "testing/temp_dir.h"

namespace imago::models {
namespace {

Traits traits_from(const std::string& text) { return config_traits(files::JsonFile::parse(text, "config.json")); }

/// A qwen3_5 of four blocks; `more` replaces or adds fields.
std::string qwen(const std::string& more = "") {
  return R"({"model_type": "qwen3_5_text", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
      "head_dim": 32, "num_hidden_layers": 4, "intermediate_size": 128, "vocab_size": 256, "rms_norm_eps": 1e-6,
      "max_position_embeddings": 128, "linear_conv_kernel_dim": 4, "linear_num_value_heads": 4,
      "linear_key_head_dim": 16, "linear_value_head_dim": 16, )" +
         more + R"("linear_num_key_heads": 2})";
}

void expect_refused(const std::string& text, const std::string& part) {
  try {
    traits_from(text);
    ADD_FAILURE() << part;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Mixers, TheDeltaRuleIsInAllButEveryFourthBlock) {
  const Traits traits = traits_from(qwen());
  EXPECT_EQ(attention_of_blocks(traits), (std::vector<bool>{false, false, false, true}));
  EXPECT_EQ(attention_period(traits), 4U);
  EXPECT_EQ(traits.rotary, 8U);
  EXPECT_EQ(traits_from(qwen(R"("layer_types": ["full_attention", "linear_attention", "full_attention",
      "linear_attention"], )"))
                .block[1]
                .mixer,
            Mixer::delta_rule);
}

TEST(Mixers, BecomeStepsWithStates) {
  const backend::Program program = make_program(traits_from(qwen()));
  const backend::Block& block = program.blocks[0];
  EXPECT_EQ(
      backend::text(block.steps),
      "rms norm stream by attention_norm -> normed\n"
      "products normed: channels -> channels, output_gate -> output_gate, input_gate -> input_gate, step -> step\n"
      "silu(taps * channels + taps_bias) -> channels\n"
      "delta rule scan of 4 heads of 16 x 16 in 2 groups -> scanned\n"
      "rms norm heads of scanned by scan_norm\n"
      "scanned *= silu(output_gate)\n"
      "products scanned: scan_output -> branch\n"
      "add branch\n"
      "rms norm stream by feed_forward_norm -> normed\n"
      "products normed: silu(gate) * up -> hidden\n"
      "products hidden: down + down_bias -> branch\n"
      "add branch\n");
  EXPECT_EQ(block.state, 3 * 128U + 4 * 16 * 16U);
  EXPECT_EQ(block.sizes.channels, 128U);
  EXPECT_EQ(block.sizes.kv_heads, 0U) << "no keys and values";
  EXPECT_EQ(program.blocks[3].state, 0U);
  EXPECT_NE(backend::text(program.blocks[3].steps).find("query *= sigmoid(output_gate)"), std::string::npos);
}

TEST(Mixers, VectorsAreTurned) {
  Traits traits = traits_from(qwen());
  EXPECT_EQ(mixer_vector(traits, backend::Role::taps, {1, 2, 3, 4, 5, 6}, 3), (std::vector<float>{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(mixer_vector(traits, backend::Role::decay_rate, {0, 1}, 1), (std::vector<float>{-1, -std::exp(1.0F)}));
  // Two groups of one query, one key and one value each.
  traits.recurrent.scan = {.heads = 2, .groups = 2, .keys = 1, .values = 1, .delta = true, .grouped = true};
  EXPECT_EQ(mixer_vector(traits, backend::Role::taps, {1, 10, 2, 20, 3, 30, 4, 40, 5, 50, 6, 60}, 2),
            (std::vector<float>{1, 3, 5, 2, 4, 6, 10, 30, 50, 20, 40, 60}));
}

/// A nemotron_h with `more` in front.
std::string nemotron(const std::string& more) {
  return R"({"model_type": "nemotron_h", )" + more + R"("hidden_size": 64, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 256,
      "max_position_embeddings": 128, "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16,
      "num_experts_per_tok": 2, "n_routed_experts": 4, "moe_intermediate_size": 32,
      "moe_shared_expert_intermediate_size": 48})";
}

TEST(Mixers, BlocksOfOneBranchHaveAListOrAPattern) {
  const Traits traits = traits_from(nemotron(R"("layers_block_type": ["mamba", "mlp", "attention", "moe"], )"));
  ASSERT_EQ(traits.blocks, 4U);
  EXPECT_EQ(traits, traits_from(nemotron(R"("hybrid_override_pattern": "M-*E", )")));
  EXPECT_EQ(traits.block[0].mixer, Mixer::mamba2);
  EXPECT_EQ(traits.block[2].mixer, Mixer::attention);
  EXPECT_EQ(traits.block[3].mixer, Mixer::none);
  std::vector<std::size_t> widths;
  for (const BlockTraits& block : traits.block) widths.push_back(block.feed_forward);
  EXPECT_EQ(widths, (std::vector<std::size_t>{0, 96, 0, 32}));
  EXPECT_EQ(experts_of_blocks(traits), (std::vector<bool>{false, false, false, true}));
  EXPECT_EQ(traits.shared_feed_forward, 48U);
  const backend::Program program = make_program(traits);
  EXPECT_EQ(backend::text(program.blocks[1].steps),
            "rms norm stream by attention_norm -> normed\n"
            "products normed: relu2(up + up_bias) -> hidden\n"
            "products hidden: down + down_bias -> branch\n"
            "add branch\n");
  EXPECT_EQ(backend::text(program.blocks[2].steps),
            "rms norm stream by attention_norm -> normed\n"
            "products normed: query + query_bias -> query, key + key_bias -> key, value + value_bias -> value\n"
            "attend * 0.25\n"
            "products query: attention_output + attention_output_bias -> branch\n"
            "add branch\n");
  EXPECT_EQ(program.blocks[1].state, 0U);
  EXPECT_EQ(traits_from(nemotron(R"("hybrid_override_pattern": "M-", )")).experts, 0U) << "no block has some";
}

/// Traits of a nemotron_h in GGUF: heads of keys and widths of its blocks. The last block predicts a further token.
Traits gguf_nemotron(const std::vector<std::uint32_t>& kv_heads, const std::vector<std::uint32_t>& widths,
                     std::vector<GgufMetadata> more = {}) {
  const auto number = [](std::uint32_t value) { return GgufValue(value); };
  std::vector<GgufMetadata> metadata = {{"general.architecture", "nemotron_h"}};
  const auto add = [&](const std::string& key, GgufValue value) {
    metadata.push_back({"nemotron_h." + key, std::move(value)});
  };
  add("block_count", number(static_cast<std::uint32_t>(kv_heads.size())));
  add("nextn_predict_layers", number(1));
  add("vocab_size", number(256));
  add("context_length", number(128));
  add("embedding_length", number(64));
  add("attention.head_count", number(4));
  add("attention.key_length", number(16));
  add("attention.head_count_kv", GgufArray::of<std::uint32_t>(kv_heads));
  add("feed_forward_length", GgufArray::of<std::uint32_t>(widths));
  add("attention.layer_norm_rms_epsilon", GgufValue(1e-5F));
  add("ssm.conv_kernel", number(4));
  add("ssm.inner_size", number(128));
  add("ssm.state_size", number(16));
  add("ssm.time_step_rank", number(8));
  add("ssm.group_count", number(2));
  for (GgufMetadata& entry : more) metadata.push_back(std::move(entry));
  const testing::TempDir temp;
  const std::string path = (temp.path() / "m.gguf").string();
  GgufWriter(path, metadata, {}).commit();
  return gguf_traits(GgufFile::open(path));
}

TEST(Mixers, BlocksOfOneBranchAreToldByTheirSizesInGguf) {
  const Traits traits = gguf_nemotron({0, 0, 2, 2}, {0, 96, 0, 96});
  ASSERT_EQ(traits.blocks, 3U);
  EXPECT_EQ(traits.block[0].mixer, Mixer::mamba2);
  EXPECT_EQ(traits.block[1].mixer, Mixer::none);
  EXPECT_EQ(traits.block[1].feed_forward, 96U);
  EXPECT_EQ(traits.block[2].mixer, Mixer::attention);
  EXPECT_EQ(rope_of_blocks(traits), std::vector<bool>(3, false));
  EXPECT_EQ(traits.recurrent.norm_groups, 2U);
  EXPECT_THROW(gguf_nemotron({0, 2, 2}, {0, 96, 0}), UnsupportedError) << "attention and a feed-forward layer";
  EXPECT_THROW(gguf_nemotron({0, 2, 2}, {0}), FormatError);
  EXPECT_THROW(gguf_nemotron({0, 2, 2}, {0, 0, 0},
                             {{"nemotron_h.expert_count", GgufValue(std::uint32_t{4})},
                              {"nemotron_h.moe_latent_size", GgufValue(std::uint32_t{8})}}),
               UnsupportedError);
}

std::string falcon(const std::string& more = "") {
  return R"({"model_type": "falcon_h1", )" + more + R"("hidden_size": 64, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 1, "intermediate_size": 96, "vocab_size": 256,
      "max_position_embeddings": 128, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1,
      "mamba_d_state": 16})";
}

TEST(Mixers, MultipliersAreStepsAndTaps) {
  const Traits traits = traits_from(falcon(R"("attention_in_multiplier": 2, "attention_out_multiplier": 3,
      "key_multiplier": 0.5, "ssm_in_multiplier": 2, "ssm_out_multiplier": 4, "mlp_multipliers": [2, 3],
      "ssm_multipliers": [2, 3, 4, 5, 6], "embedding_multiplier": 5, "lm_head_multiplier": 7, )"));
  const backend::Program program = make_program(traits);
  EXPECT_EQ(backend::text(program.blocks[0].steps),
            "rms norm stream by attention_norm -> normed\n"
            "products normed: output_gate -> output_gate, channels -> channels, step -> step\n"
            "output_gate *= 4\n"
            "step *= 12\n"
            "silu(taps * channels + taps_bias) -> channels\n"
            "linear scan of 4 heads of 16 x 16 in 1 groups -> scanned\n"
            "scanned *= silu(output_gate)\n"
            "products normed: query + query_bias -> query, key + key_bias -> key, value + value_bias -> value\n"
            "attend * 0.5, rotary 16 halves\n"
            "products query: attention_output + attention_output_bias -> branch\n"
            "add branch * 6\n"
            "products scanned: scan_output -> branch\n"
            "add branch * 4\n"
            "rms norm stream by feed_forward_norm -> normed\n"
            "normed *= 2\n"
            "products normed: silu(gate) * up -> hidden\n"
            "products hidden: down + down_bias -> branch\n"
            "add branch * 1.5\n");
  EXPECT_EQ(program.embed.scale, 5);
  EXPECT_NE(backend::text(program.output).find("adjust logits * 7"), std::string::npos);
  // 64 channels of values, 16 of keys, 16 of queries.
  const std::vector<float> taps = mixer_vector(traits, backend::Role::taps, std::vector<float>(2 * 96, 1), 2);
  EXPECT_EQ(taps[63], 6);
  EXPECT_EQ(taps[64], 8);
  EXPECT_EQ(taps[80], 10);
  EXPECT_EQ(taps[96], 6) << "the second tap of the first channel";
}

TEST(Mixers, WhatIsWrongIsNamed) {
  expect_refused(nemotron(""), "'layers_block_type' is missing");
  expect_refused(nemotron(R"("layers_block_type": [], )"), "types of 0 blocks");
  expect_refused(nemotron(R"("hybrid_override_pattern": "M?", )"), "blocks of type '?'");
  expect_refused(nemotron(R"("hybrid_override_pattern": "ME", "moe_latent_size": 8, )"), "'moe_latent_size'");
  expect_refused(falcon(R"("mamba_d_ssm": 128, )"), "mamba_d_ssm is 128, and 4 heads of 16 values are 64");
  expect_refused(falcon(R"("mamba_rms_norm": true, )"), "'mamba_norm_before_gate'");
  expect_refused(falcon(R"("attention_bias": true, )"), "'attention_bias'");
  expect_refused(falcon(R"("ssm_multipliers": [1, 1], )"), "ssm_multipliers must be 5 numbers");
  expect_refused(falcon(R"("mlp_multipliers": [0, 1], )"), "mlp_multipliers has 0");
  expect_refused(qwen(R"("layer_types": ["full_attention"], )"), "layer_types has 1 entries for 4 blocks");
  expect_refused(qwen(R"("layer_types": ["full_attention", "magic", "full_attention", "full_attention"], )"),
                 "'magic'");
  std::string text = qwen();
  text.replace(text.find(R"("linear_num_key_heads": 2)"), 25, R"("linear_num_key_heads": 3)");
  expect_refused(text, "4 heads of a scan cannot share the keys of 3");
  text = qwen();
  text.replace(text.find(R"("linear_conv_kernel_dim": 4)"), 27, R"("linear_conv_kernel_dim": 9)");
  expect_refused(text, "linear_conv_kernel_dim");
  expect_refused(R"({"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 256,
      "state_size": 16, "use_bias": true})",
                 "'use_bias'");
}

TEST(Mixers, RanksAndWidthsOfMambaHaveDefaults) {
  const Traits traits = traits_from(R"({"model_type": "mamba", "hidden_size": 72, "num_hidden_layers": 2,
      "vocab_size": 256, "time_step_rank": "auto"})");
  EXPECT_EQ(traits.recurrent.rank, 5U);
  EXPECT_EQ(traits.recurrent.scan.heads, 144U);
  EXPECT_FALSE(attends(traits));
}

TEST(Mixers, WidthsOfLfm2AreAdjusted) {
  const std::string text = R"({"model_type": "lfm2", "hidden_size": 64, "num_attention_heads": 4,
      "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 256, "max_position_embeddings": 128,
      "layer_types": ["conv", "full_attention"], "block_ff_dim": 1000, "block_auto_adjust_ff_dim": true,
      "block_multiple_of": 64, "conv_L_cache": 3})";
  EXPECT_EQ(traits_from(text).block[0].feed_forward, 704U);  // 666, rounded up
  EXPECT_EQ(traits_from(text).recurrent.kernel, 3U);
}

}  // namespace
}  // namespace imago::models
