// The steps of every architecture, and how the CUDA backend joins them.

#include "models/program.h"
#include "imago/error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "backend/cuda/fuse.h"
#include "imago/error.h"
#include "models/architectures.h"

namespace imago::models {
namespace {

Traits small(Architecture architecture) {
  Traits traits = traits_of(architecture);
  traits.blocks = 2;
  traits.width = 64;
  traits.heads = 4;
  traits.kv_heads = 2;
  traits.head_values = 16;
  traits.vocabulary = 100;
  traits.rotary = traits.learned_positions ? 0 : 16;
  traits.block.assign(2, {.rope = !traits.learned_positions, .feed_forward = 128});
  traits.attention_scale = 0.25f;
  if (facts(architecture).experts) {
    for (BlockTraits& block : traits.block) block.experts = true;
    traits.experts = 8;
    traits.experts_used = 2;
  }
  if (facts(architecture).latent) {
    traits.kv_heads = 4;
    traits.rotary = 8;
    traits.latent = 32;
    traits.latent_values = 12;
  }
  traits.tied_output = facts(architecture).tied_by_default;
  return traits;
}

std::string block_text(const Traits& traits, std::size_t block = 0) {
  return backend::text(make_program(traits).blocks[block].steps);
}

std::string fused_text(const Traits& traits, std::size_t block = 0) {
  std::string made;
  const backend::Program program = make_program(traits);
  const backend::cuda::FusedProgram fused = backend::cuda::fuse(program, {0, program.blocks.size()});
  for (const backend::cuda::FusedStep& step : fused.blocks[block].steps) {
    made += backend::cuda::text(step) + "\n";
  }
  return made;
}

TEST(Program, IsThatOfLlama) {
  const backend::Program program = make_program(small(Architecture::llama));
  EXPECT_EQ(backend::text(program.embed), "embed token_embedding -> stream");
  EXPECT_EQ(backend::text(program.blocks[1].steps),
            "rms norm stream by attention_norm -> normed\n"
            "products normed: query + query_bias -> query, key + key_bias -> key, value + value_bias -> value\n"
            "attend * 0.25, rotary 16 halves\n"
            "products query: attention_output + attention_output_bias -> branch\n"
            "add branch\n"
            "rms norm stream by feed_forward_norm -> normed\n"
            "products normed: silu(gate) * up -> hidden\n"
            "products hidden: down + down_bias -> branch\n"
            "add branch\n");
  EXPECT_EQ(backend::text(program.output),
            "rms norm stream by output_norm -> normed\n"
            "products normed: output -> logits\n");
}

TEST(Program, HasWhatTraitsSay) {
  Traits gemma = small(Architecture::gemma2);
  gemma.embedding_scale = 8;
  set_windows(gemma, {0, 32});
  gemma.attention_cap = 50;
  gemma.logit_cap = 30;
  const backend::Program program = make_program(gemma);
  EXPECT_EQ(backend::text(program.embed), "embed token_embedding * 8 -> stream");
  EXPECT_EQ(backend::text(program.blocks[1].steps),
            "rms norm stream by attention_norm -> normed\n"
            "products normed: query + query_bias -> query, key + key_bias -> key, value + value_bias -> value\n"
            "attend * 0.25, rotary 16 halves, window 32, cap 50\n"
            "products query: attention_output + attention_output_bias -> branch\n"
            "rms norm branch by attention_post_norm -> branch\n"
            "add branch\n"
            "rms norm stream by feed_forward_norm -> normed\n"
            "products normed: gelu(gate) * up -> hidden\n"
            "products hidden: down + down_bias -> branch\n"
            "rms norm branch by feed_forward_post_norm -> branch\n"
            "add branch\n");
  EXPECT_EQ(backend::text(program.output),
            "rms norm stream by output_norm -> normed\n"
            "products normed: token_embedding -> logits\n"
            "adjust logits * 1, cap 30\n");

  Traits granite = small(Architecture::granite);
  granite.residual_scale = 0.5f;
  EXPECT_NE(block_text(granite).find("add branch * 0.5\n"), std::string::npos);
  Traits smol = small(Architecture::smollm3);
  set_rope(smol, {true, false});
  EXPECT_NE(block_text(smol, 1).find("attend * 0.25\n"), std::string::npos);
}

TEST(Program, EncodersSeeAllAndNormTheSums) {
  Traits bert = small(Architecture::bert);
  bert.token_types = 2;
  const backend::Program program = make_program(bert);
  EXPECT_EQ(backend::text(program.embed),
            "embed token_embedding + position_embedding + token_types -> stream, layer norm stream by embedding_norm + "
            "embedding_norm_bias -> stream");
  EXPECT_EQ(backend::text(program.blocks[1].steps),
            "products stream: query + query_bias -> query, key + key_bias -> key, value + value_bias -> value\n"
            "attend * 0.25, both ways\n"
            "products query: attention_output + attention_output_bias -> branch\n"
            "add branch\n"
            "layer norm stream by attention_post_norm + attention_post_norm_bias -> stream\n"
            "products stream: gelu_erf(up + up_bias) -> hidden\n"
            "products hidden: down + down_bias -> branch\n"
            "add branch\n"
            "layer norm stream by feed_forward_post_norm + feed_forward_post_norm_bias -> stream\n");
  EXPECT_TRUE(program.output.empty());
  EXPECT_TRUE(program.head.steps.empty());
  bert.head = {.results = 1, .hidden = 64, .activation = kernels::Activation::tanh, .scores = true};
  EXPECT_EQ(backend::text(make_program(bert).head.steps),
            "products stream: tanh(head_dense + head_dense_bias) -> hidden\n"
            "products hidden: head_output + head_output_bias -> logits\n");

  Traits bare = small(Architecture::qwen3);
  bare.has_output = false;
  EXPECT_EQ(backend::text(make_program(bare).output), "rms norm stream by output_norm -> normed\n");
  EXPECT_TRUE(backend::cuda::fuse(make_program(bare), {0, 2}).output.products.empty());
}

TEST(Program, BranchesSideBySideReadTheSameStream) {
  Traits neox = small(Architecture::gpt_neox);
  neox.parallel = true;
  EXPECT_EQ(block_text(neox),
            "layer norm stream by attention_norm + attention_norm_bias -> normed\n"
            "products normed: query + query_bias -> query, key + key_bias -> key, value + value_bias -> value\n"
            "attend * 0.25, rotary 16 halves\n"
            "layer norm stream by feed_forward_norm + feed_forward_norm_bias -> normed\n"
            "products normed: gelu_erf(up + up_bias) -> hidden\n"
            "products query: attention_output + attention_output_bias -> branch\n"
            "add branch\n"
            "products hidden: down + down_bias -> branch\n"
            "add branch\n");
  EXPECT_EQ(backend::text(make_program(small(Architecture::phi)).output),
            "layer norm stream by output_norm + output_norm_bias -> normed\n"
            "products normed: output + output_bias -> logits\n");
}

TEST(Program, BlocksWithAWindowMayTurnInAnotherWay) {
  Traits gemma = small(Architecture::gemma3);
  gemma.block[0].window = 32;
  gemma.window_rope = Rope{.base = 1e4, .rotary = 8, .scaling = {}};
  EXPECT_NE(block_text(gemma, 0).find("attend * 0.25, rotary other 8 halves, window 32\n"), std::string::npos);
  EXPECT_NE(block_text(gemma, 1).find("attend * 0.25, rotary 16 halves\n"), std::string::npos);
  Traits ministral = small(Architecture::ministral3);
  ministral.query_growth = 0.5;
  ministral.rope_scaling.original_context = 64;
  EXPECT_NE(block_text(ministral).find("rotary 16 halves, growing by 0.5 from 64\n"), std::string::npos);
}

TEST(Program, BlocksMayHaveInputsAndTheCachesOfOthers) {
  Traits gemma = small(Architecture::gemma4);
  gemma.layer_values = 8;
  gemma.layer_vocabulary = 50;
  gemma.block[0].head_values = 8;
  gemma.block[0].keys_are_values = true;
  gemma.block[1].cache = 0;
  const backend::Program program = make_program(gemma);
  EXPECT_EQ(program.blocks[0].sizes.of(backend::Slot::query), 4U * 8U);
  EXPECT_EQ(program.blocks[1].sizes.of(backend::Slot::key), 0U);
  EXPECT_EQ(program.sizes.of(backend::Slot::layer_inputs), 2U * 8U);
  ASSERT_TRUE(program.embed.layers);
  EXPECT_NE(block_text(gemma, 0).find("products normed: query + query_bias -> query, key + key_bias -> key\n"
                                      "rms norm heads of key -> value\n"
                                      "rms norm heads of query by query_norm\n"),
            std::string::npos);
  EXPECT_NE(block_text(gemma, 1).find("products normed: query + query_bias -> query\n"
                                      "rms norm heads of query by query_norm\n"
                                      "attend * 0.25, rotary 16 halves, cache of block 0\n"),
            std::string::npos);
  EXPECT_NE(block_text(gemma, 1).find("products stream: layer_gate -> layer_hidden\n"
                                      "gelu(layer_hidden) * layer_inputs -> layer_hidden\n"
                                      "products layer_hidden: layer_output -> branch\n"
                                      "rms norm branch by layer_post_norm -> branch\n"
                                      "add branch\n"
                                      "stream * block_scale\n"),
            std::string::npos);
}

TEST(Program, ExpertsMayStandBesideADenseLayer) {
  Traits gemma = small(Architecture::gemma4);
  gemma.experts = 4;
  gemma.experts_used = 2;
  gemma.experts_beside = true;
  gemma.shared_feed_forward = 96;
  for (BlockTraits& block : gemma.block) block.experts = true;
  EXPECT_NE(block_text(gemma).find(
                "rms norm stream by feed_forward_norm -> normed\n"
                "products normed: gelu(shared_gate) * shared_up -> dense_hidden\n"
                "products dense_hidden: shared_down -> branch\n"
                "rms norm branch by dense_post_norm -> branch\n"
                "rms norm stream by router_norm -> routed\n"
                "rms norm stream by experts_norm -> normed\n"
                "experts normed: 2 of 4 by router of routed, normalized * expert_scale: gelu(gate) * up -> hidden, "
                "down -> from_experts\n"
                "rms norm from_experts by experts_post_norm -> from_experts\n"
                "add from_experts -> branch\n"
                "rms norm branch by feed_forward_post_norm -> branch\n"
                "add branch\n"),
            std::string::npos)
      << block_text(gemma);
  EXPECT_EQ(make_program(gemma).sizes.of(backend::Slot::dense_hidden), 96U);
  EXPECT_THROW(fused_text(gemma), UnsupportedError);
}

TEST(Program, TokensMayHaveSeveralStreams) {
  Traits gemma = small(Architecture::gemma3n);
  gemma.streams = 4;
  gemma.laurel_rank = 8;
  gemma.layer_values = 8;
  gemma.layer_vocabulary = 50;
  gemma.block[1].sparsity = 0.95;
  const backend::Program program = make_program(gemma);
  ASSERT_TRUE(program.embed.streams);
  EXPECT_EQ(program.embed.streams->count, 4U);
  EXPECT_EQ(program.sizes.of(backend::Slot::streams), 4U * 64U);
  EXPECT_EQ(block_text(gemma, 1),
            "predict 4 streams by stream_router_norm, stream_router and stream_prediction\n"
            "rms norm stream by attention_norm -> normed\n"
            "products normed: query + query_bias -> query, key + key_bias -> key, value + value_bias -> value\n"
            "rms norm heads of value -> value\n"
            "rms norm heads of query by query_norm\n"
            "rms norm heads of key by key_norm\n"
            "attend * 0.25, rotary 16 halves\n"
            "rms norm stream by attention_norm -> normed\n"
            "products normed: laurel_low -> laurel_low\n"
            "products laurel_low: laurel_up -> branch\n"
            "rms norm branch by laurel_norm -> branch\n"
            "add branch\n"
            "add normed\n"
            "products query: attention_output + attention_output_bias -> branch\n"
            "rms norm branch by attention_post_norm -> branch\n"
            "add branch, all * 0.707107\n"
            "rms norm stream by feed_forward_norm -> normed\n"
            "products normed: gate -> hidden, up -> up\n"
            "gelu(hidden above 1.64485 deviations) * up -> hidden\n"
            "products hidden: down + down_bias -> branch\n"
            "rms norm branch by feed_forward_post_norm -> branch\n"
            "add branch\n"
            "correct 4 streams by stream_router_norm, stream_router and stream_correction\n"
            "stream * stream_scale -> normed\n"
            "products normed: layer_gate -> layer_hidden\n"
            "gelu(layer_hidden) * layer_inputs -> layer_hidden\n"
            "products layer_hidden: layer_output -> branch\n"
            "rms norm branch by layer_post_norm -> branch\n"
            "add branch -> streams\n"
            "merge 4 streams by stream_merge\n");
  EXPECT_EQ(block_text(gemma, 0).find("merge"), std::string::npos);
  EXPECT_THROW(fused_text(gemma), UnsupportedError);
}

// From tables of the normal distribution.
TEST(Sparsity, IsAShareOrAsManyDeviations) {
  for (const auto& [share, deviations] : {std::pair(0.5, 0.0), std::pair(0.841344746, 1.0), std::pair(0.95, 1.6448536),
                                          std::pair(0.975, 1.9599640), std::pair(0.01, -2.3263479)}) {
    EXPECT_NEAR(static_cast<double>(sparse_deviations(share)), deviations, 1e-6) << share;
    EXPECT_NEAR(sparse_share(static_cast<float>(deviations)), share, 1e-5) << deviations;
  }
  EXPECT_EQ(sparse_share(1.6448535F), 0.95) << "as files have it";
  EXPECT_EQ(sparse_share(-std::numeric_limits<float>::infinity()), 0) << "as files say that none are cut off";
}

TEST(Program, WeightsAreListedInTheOrderOfTheSteps) {
  const backend::Program program = make_program(small(Architecture::mixtral));
  std::vector<std::string> names;
  for (const backend::WeightUse& use : backend::weights_of(program.blocks[1].steps)) {
    std::string text;
    for (const backend::WeightKey& key : use.keys) {
      EXPECT_EQ(key.block, 1u);
      text += std::string(text.empty() ? "" : "+") + std::string(backend::name(key.role)) + std::to_string(key.expert);
    }
    names.push_back(text);
  }
  const auto router = std::ranges::find(names, "router0");
  ASSERT_NE(router, names.end());
  EXPECT_EQ(std::vector<std::string>(router, router + 5),
            (std::vector<std::string>{"router0", "gate0+up0", "down0", "gate1+up1", "down1"}));
  EXPECT_EQ(names.back(), "down7");
}

std::string neighbours(std::string text) { return text.replace(text.find("halves"), 6, "adjacent"); }

/// Products of a line, and the first ones of a feed-forward layer that has the same norm.
std::string with(const std::string& products, const std::string& hidden) {
  return products.substr(0, products.size() - 1) + ", " + hidden + " -> hidden\n";
}

/// What the CUDA backend queues for a block of each architecture.
TEST(Fused, IsWhatTheCudaBackendRuns) {
  const std::string qkv = "query + query_bias -> query, key + key_bias -> key, value + value_bias -> value\n";
  const std::string attention = "rms norm stream by attention_norm -> normed | products normed: " + qkv;
  const std::string attend = "attend * 0.25, rotary 16 halves for attention_output\n";
  const std::string output = "products query: attention_output + attention_output_bias -> branch | add branch\n";
  const std::string norm = "rms norm stream by feed_forward_norm -> normed | ";
  const std::string hidden = "products normed: silu(gate) * up -> hidden\n";
  const std::string down = "products hidden: down + down_bias -> branch | add branch\n";
  const std::string llama = attention + attend + output + norm + hidden + down;
  const std::string heads = "rms norm heads of query by query_norm | rms norm heads of key by key_norm | ";
  const std::string norms_after =
      "products stream: " + qkv + heads + attend +
      "products query: attention_output + attention_output_bias -> branch | rms norm branch by "
      "attention_post_norm -> branch | add branch\n" +
      "products stream: silu(gate) * up -> hidden\n" +
      "products hidden: down + down_bias -> branch | rms norm branch by feed_forward_post_norm -> branch | add "
      "branch\n";
  const std::string experts =
      norm + "experts normed: 2 of 8 by router, normalized: silu(gate) * up -> hidden, down -> branch | add branch\n";
  const std::string two_norms = attention + heads + attend +
                                "products query: attention_output + attention_output_bias -> branch | rms norm branch "
                                "by attention_post_norm -> branch | add branch\n" +
                                norm + "products normed: gelu(gate) * up -> hidden\n" +
                                "products hidden: down + down_bias -> branch | rms norm branch by "
                                "feed_forward_post_norm -> branch | add branch\n";
  const std::string normed_values =
      attention + "rms norm heads of value -> value | " + two_norms.substr(attention.size());
  const std::string layer_attention =
      "layer norm stream by attention_norm + attention_norm_bias -> normed | products normed: " + qkv;
  const std::string layer_norm = "layer norm stream by feed_forward_norm + feed_forward_norm_bias -> normed | ";
  const auto layers = [&](const std::string& activation) {
    return layer_attention + attend + output + layer_norm + "products normed: " + activation + " -> hidden\n" + down;
  };
  const std::string sigmoid_experts = norm +
                                      "experts normed: 2 of 8 by sigmoid of router, chosen by + choice_bias, "
                                      "normalized: silu(gate) * up -> hidden, down -> branch | add branch\n";
  const std::string latent =
      "rms norm stream by attention_norm -> normed | products normed: query -> query, latent -> key\n"
      "attend * 0.25 to 32 latent values by latent_norm, rotary 8 adjacent: key_up, value_up -> attended\n"
      "products attended: attention_output + attention_output_bias -> branch | add branch\n";
  const auto texts = [&](const std::string& attends, const std::string& activation) {
    const auto stream_norm = [](const std::string& name) {
      return "layer norm stream by " + name + " + " + name + "_bias -> stream\n";
    };
    return "products stream: " + qkv + attends + output + stream_norm("attention_post_norm") +
           "products stream: " + activation + " -> hidden\n" + down + stream_norm("feed_forward_post_norm");
  };
  const std::map<Architecture, std::string> wanted = {
      {Architecture::llama, llama},
      {Architecture::mistral, llama},
      {Architecture::qwen2, llama},
      {Architecture::qwen3, attention + heads + attend + output + norm + hidden + down},
      {Architecture::qwen3_moe, attention + heads + attend + output + experts},
      {Architecture::phi3, llama},
      {Architecture::gemma2,
       attention + attend +
           "products query: attention_output + attention_output_bias -> branch | rms norm branch by "
           "attention_post_norm -> branch | add branch\n" +
           norm + "products normed: gelu(gate) * up -> hidden\n" +
           "products hidden: down + down_bias -> branch | rms norm branch by feed_forward_post_norm -> branch | add "
           "branch\n"},
      {Architecture::olmo2, norms_after},
      {Architecture::exaone4, norms_after},
      {Architecture::granite, llama},
      {Architecture::smollm3, llama},
      {Architecture::mixtral, attention + attend + output + experts},
      {Architecture::olmoe, attention + heads + attend + output + experts},
      {Architecture::granitemoe, attention + attend + output + experts},
      {Architecture::glm4,
       attention + "attend * 0.25, rotary 16 adjacent for attention_output\n" +
           "products query: attention_output + attention_output_bias -> branch | rms norm branch by "
           "attention_post_norm -> branch | add branch\n" +
           norm + "products normed: silu(gate) * up -> hidden\n" +
           "products hidden: down + down_bias -> branch | rms norm branch by feed_forward_post_norm -> branch | add "
           "branch\n"},
      {Architecture::glm4_moe, attention + heads + attend + output + sigmoid_experts},
      {Architecture::minimax_m2, attention + heads + attend + output + sigmoid_experts},
      {Architecture::gpt_oss,
       attention + "attend * 0.25, rotary 16 halves, sinks for attention_output\n" + output + norm +
           "experts normed: 2 of 8 by router + router_bias, normalized: clamped_swish(gate + gate_bias) * (up + "
           "up_bias) -> hidden, down + down_bias -> branch | add branch\n"},
      {Architecture::gpt2,
       "layer norm stream by attention_norm + attention_norm_bias -> normed | products normed: " + qkv +
           "attend * 0.25 for attention_output\n" + output +
           "layer norm stream by feed_forward_norm + feed_forward_norm_bias -> normed | products normed: gelu(up + "
           "up_bias) -> hidden\n" +
           down},
      {Architecture::olmo3, norms_after},
      {Architecture::ministral3, llama},
      {Architecture::cohere2, neighbours("layer norm stream by attention_norm -> normed | products normed: " +
                                         with(qkv, "silu(gate) * up") + attend + output + down)},
      {Architecture::ernie4_5, neighbours(llama)},
      {Architecture::hunyuan_v1_dense,
       attention +
           "attend * 0.25, rotary 16 halves, then norms of heads by query_norm and key_norm for attention_output\n" +
           output + norm + hidden + down},
      {Architecture::starcoder2, layers("gelu(up + up_bias)")},
      {Architecture::phi, with(layer_attention, "gelu(up + up_bias)") + attend + output + down},
      {Architecture::gpt_neox, layers("gelu_erf(up + up_bias)")},
      {Architecture::stablelm, layers("silu(gate) * up")},
      {Architecture::falcon,
       layer_attention + layer_norm + "products normed: gelu_erf(up + up_bias) -> hidden\n" + attend + output + down},
      {Architecture::gemma3, two_norms},
      {Architecture::embedding_gemma,
       std::string(two_norms).insert(two_norms.find(" for attention_output"), ", both ways")},
      {Architecture::gemma3n, normed_values},
      {Architecture::gemma4, normed_values + "stream * block_scale\n"},
      {Architecture::bert, texts("attend * 0.25, both ways for attention_output\n", "gelu_erf(up + up_bias)")},
      {Architecture::nomic_bert,
       texts("attend * 0.25, rotary 16 halves, both ways for attention_output\n", "silu(gate) * up")},
      {Architecture::modernbert,
       "layer norm stream by attention_norm -> normed | products normed: " + qkv +
           "attend * 0.25, rotary 16 halves, both ways for attention_output\n" + output +
           "layer norm stream by feed_forward_norm -> normed | products normed: gelu_erf(gate) * up -> hidden\n" +
           down},
      {Architecture::deepseek_v2, latent + experts},
      {Architecture::deepseek_v3, latent + sigmoid_experts},
  };
  for (const ArchitectureFacts& row : architectures()) {
    if (!row.mixer_prefix.empty()) continue;  // tests of their own
    ASSERT_TRUE(wanted.contains(row.architecture)) << row.model_type << ": say here what runs";
    EXPECT_EQ(fused_text(small(row.architecture)), wanted.at(row.architecture)) << row.model_type;
  }
}

Traits recurrent(Architecture architecture, Mixer mixer) {
  Traits traits = small(architecture);
  for (BlockTraits& block : traits.block) block.mixer = mixer;
  traits.recurrent = {.kernel = 4,
                      .scan = {.heads = 4, .groups = 2, .keys = 16, .values = 24, .delta = mixer == Mixer::delta_rule},
                      .rank = 4};
  return traits;
}

const std::string kScanOutput = "products scanned: scan_output -> branch | add branch\n";
const std::string kFeedForward =
    "rms norm stream by feed_forward_norm -> normed | products normed: silu(gate) * up -> hidden\n"
    "products hidden: down + down_bias -> branch | add branch\n";

TEST(Fused, ConvolutionsAndScansTakeTheirGatesAlong) {
  EXPECT_EQ(fused_text(recurrent(Architecture::lfm2, Mixer::short_conv)),
            "rms norm stream by attention_norm -> normed | products normed: input_gate -> input_gate, output_gate -> "
            "output_gate, channels -> channels\n"
            "channels *= input_gate | taps * channels + taps_bias -> scanned | scanned *= output_gate\n" +
                kScanOutput + kFeedForward);
  EXPECT_EQ(fused_text(recurrent(Architecture::qwen3_5, Mixer::delta_rule)),
            "rms norm stream by attention_norm -> normed | products normed: channels -> channels, output_gate -> "
            "output_gate, input_gate -> input_gate, step -> step\n"
            "silu(taps * channels + taps_bias) -> channels\n"
            "delta rule scan of 4 heads of 16 x 24 in 2 groups -> scanned | rms norm heads of scanned by scan_norm | "
            "scanned *= silu(output_gate)\n" +
                kScanOutput + kFeedForward);
  Traits mamba = recurrent(Architecture::mamba, Mixer::mamba);
  for (BlockTraits& block : mamba.block) block.feed_forward = 0;
  EXPECT_EQ(fused_text(mamba),
            "rms norm stream by attention_norm -> normed | products normed: channels -> channels, output_gate -> "
            "output_gate\n"
            "silu(taps * channels + taps_bias) -> channels\n"
            "products channels: step_low -> step_low, input_gate -> input_gate\n"
            "products step_low: step -> step\n"
            "scan of channels with 16 states -> scanned | scanned *= silu(output_gate)\n" +
                kScanOutput);
  Traits mamba2 = recurrent(Architecture::mamba2, Mixer::mamba2);
  mamba2.recurrent.norm_groups = 2;
  for (BlockTraits& block : mamba2.block) block.feed_forward = 0;
  EXPECT_EQ(fused_text(mamba2),
            "rms norm stream by attention_norm -> normed | products normed: output_gate -> output_gate, channels -> "
            "channels, step -> step\n"
            "silu(taps * channels + taps_bias) -> channels\n"
            "linear scan of 4 heads of 16 x 24 in 2 groups -> scanned | scanned *= silu(output_gate) | rms norm heads "
            "of scanned by scan_norm of 2 groups\n" +
                kScanOutput);
}

TEST(Fused, AttentionTakesItsGateAlongAndSharesTheNormOfAScan) {
  const std::string fused = fused_text(small(Architecture::qwen3_5));
  EXPECT_NE(fused.find(", attention_gate -> output_gate\n"), std::string::npos) << fused;
  EXPECT_NE(fused.find(" | attend * 0.25, rotary 16 halves | query *= sigmoid(output_gate) for attention_output\n"),
            std::string::npos)
      << fused;
  Traits beside = recurrent(Architecture::llama, Mixer::mamba2_beside_attention);
  beside.recurrent.norm_groups = 0;
  EXPECT_EQ(fused_text(beside),
            "rms norm stream by attention_norm -> normed | products normed: output_gate -> output_gate, channels -> "
            "channels, step -> step, query + query_bias -> query, key + key_bias -> key, value + value_bias -> value\n"
            "silu(taps * channels + taps_bias) -> channels\n"
            "linear scan of 4 heads of 16 x 24 in 2 groups -> scanned | scanned *= silu(output_gate)\n"
            "attend * 0.25, rotary 16 halves for attention_output\n"
            "products query: attention_output + attention_output_bias -> branch | add branch\n" +
                kScanOutput + kFeedForward);
}

TEST(Fused, FactorsOnTheWayToAScanAndOfANormAreLaunches) {
  Traits traits = recurrent(Architecture::llama, Mixer::mamba2_beside_attention);
  traits.recurrent.norm_groups = 0;
  traits.multipliers.scan_in = 0.5f;
  traits.multipliers.gate = 0.25f;
  const std::string fused = fused_text(traits);
  EXPECT_NE(fused.find("key + key_bias -> key, value + value_bias -> value\n"
                       "output_gate *= 0.5\n"
                       "step *= 0.5\n"
                       "silu(taps * channels + taps_bias) -> channels\n"),
            std::string::npos)
      << fused;
  EXPECT_NE(
      fused.find("rms norm stream by feed_forward_norm -> normed | normed *= 0.25 | products normed: silu(gate) * "
                 "up -> hidden\n"),
      std::string::npos)
      << fused;
}

TEST(Fused, RefusesStatesThatFillNoRegisters) {
  const auto expect_refused = [](const Traits& traits, const std::string& step) {
    try {
      backend::cuda::fuse(make_program(traits), {0, 1});
      ADD_FAILURE() << step;
    } catch (const UnsupportedError& error) {
      EXPECT_NE(std::string(error.what()).find(step), std::string::npos) << error.what();
    }
  };
  Traits delta = recurrent(Architecture::qwen3_5, Mixer::delta_rule);
  delta.recurrent.scan.keys = 257;
  expect_refused(delta, "delta rule scan of 4 heads of 257 x 24");
  Traits mamba = recurrent(Architecture::mamba, Mixer::mamba);
  mamba.recurrent.scan.keys = 65;
  expect_refused(mamba, "scan of channels with 65 states");
}

TEST(Program, IsThatOfDeepseek) {
  Traits traits = small(Architecture::deepseek_v2);
  traits.query_low = 24;
  traits.block[0].experts = false;
  EXPECT_EQ(block_text(traits),
            "rms norm stream by attention_norm -> normed\n"
            "products normed: query_low -> query_low, latent -> key\n"
            "rms norm query_low by query_low_norm -> query_low\n"
            "products query_low: query -> query\n"
            "attend * 0.25 to 32 latent values by latent_norm, rotary 8 adjacent: key_up, value_up -> attended\n"
            "products attended: attention_output + attention_output_bias -> branch\n"
            "add branch\n"
            "rms norm stream by feed_forward_norm -> normed\n"
            "products normed: silu(gate) * up -> hidden\n"
            "products hidden: down + down_bias -> branch\n"
            "add branch\n");
}

TEST(Fused, IsThatOfQueriesThatAreSpread) {
  Traits traits = small(Architecture::deepseek_v2);
  traits.query_low = 24;
  traits.block[0].experts = false;
  const std::string text = fused_text(traits);
  EXPECT_EQ(text.substr(0, text.find("attend")),
            "rms norm stream by attention_norm -> normed | products normed: query_low -> query_low, latent -> key\n"
            "rms norm query_low by query_low_norm -> query_low\n"
            "products query_low: query -> query\n");
}

TEST(Fused, IsThatOfBlocksWithInputsAndCachesOfOthers) {
  Traits traits = small(Architecture::gemma4);
  traits.layer_values = 8;
  traits.block[0].keys_are_values = true;
  traits.block[1].cache = 0;
  const std::string first = fused_text(traits, 0), second = fused_text(traits, 1);
  EXPECT_NE(first.find("key + key_bias -> key\nrms norm heads of key -> value | "), std::string::npos) << first;
  EXPECT_NE(first.find("products stream: layer_gate -> layer_hidden\n"
                       "gelu(layer_hidden) * layer_inputs -> layer_hidden\n"
                       "products layer_hidden: layer_output -> branch | rms norm branch by layer_post_norm -> branch | "
                       "add branch\nstream * block_scale\n"),
            std::string::npos)
      << first;
  EXPECT_NE(second.find("products normed: query + query_bias -> query\n"
                        "rms norm heads of query by query_norm | attend * 0.25, rotary 16 halves, cache of block 0 "),
            std::string::npos)
      << second;
  // A runner has the caches that its blocks attend to.
  EXPECT_THROW(backend::cuda::fuse(make_program(traits), {1, 2}), UnsupportedError);
}

TEST(Fused, KeepsTheHead) {
  Traits traits = small(Architecture::bert);
  traits.head = {.results = 1, .hidden = 64, .norm = true};
  EXPECT_EQ(backend::text(backend::cuda::fuse(make_program(traits), {0, 2}).head),
            "products stream: head_dense + head_dense_bias -> hidden\n"
            "layer norm hidden by head_norm -> hidden\n"
            "products hidden: head_output + head_output_bias -> logits\n");
}

TEST(Fused, IsThatOfTheBlocksOfARunner) {
  for (const ArchitectureFacts& row : architectures()) {
    if (row.encoder || row.both_sides) continue;  // without logits
    const backend::Program program = make_program(small(row.architecture));
    const backend::cuda::FusedProgram fused = backend::cuda::fuse(program, {1, 2});
    EXPECT_EQ(fused.blocks.size(), 1u);
    EXPECT_EQ(fused.output.products.size(), 1u);
  }
}

}  // namespace
}  // namespace imago::models
