#include "models/summary.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "imago/data.h"
#include "imago/error.h"
#include "testing/temp_dir.h"
#include "testing/torch_models.h"

namespace imago::models {
namespace {

using files::TensorFile;

Summary summary_of(const std::string& name) { return summarize(TensorFile::open(*testing::find_torch_model(name))); }

TEST(Summary, CountsWhatATokenReads) {
  if (!testing::find_torch_model("qwen3_moe_f32")) GTEST_SKIP() << testing::missing_torch_model("qwen3_moe_f32");
  // Width 64, 4 heads and 2 of keys of 16 values, 2 blocks, 256 tokens; feed-forward layers of 128.
  constexpr std::uint64_t kAttention = 64 * (64 + 32 + 32) + 64 * 64;
  const Summary llama = summary_of("llama_tied_f32");
  EXPECT_EQ(llama.architecture, "llama");
  EXPECT_TRUE(llama.generates);
  EXPECT_EQ(llama.active_parameters, 2 * (kAttention + 3 * 64 * 128) + 256 * 64);
  EXPECT_EQ(llama.step_bytes, 4 * llama.active_parameters);
  EXPECT_EQ(llama.cache_bytes, 2u * 2 * 2 * 16 * 2);
  const Summary experts = summary_of("qwen3_moe_f32");
  EXPECT_EQ(experts.experts, 4u);
  EXPECT_EQ(experts.experts_used, 2u);
  EXPECT_EQ(experts.active_parameters, 2 * (kAttention + 4 * 64 + 2 * 3 * 64 * 64) + 256 * 64);
}

/// What is said about a folder with these tensors.
std::string problem_of(const std::string& config, const std::vector<std::string>& names) {
  const testing::TempDir folder;
  folder.write("config.json", config);
  std::vector<std::pair<std::string, Tensor<float>>> tensors;
  for (const std::string& name : names) tensors.emplace_back(name, Tensor<float>(Shape{2, 3}));
  save_safetensors((folder.path() / "model.safetensors").string(), tensors);
  try {
    summarize(TensorFile::open(folder.path().string()));
  } catch (const UnsupportedError& error) {
    return error.what();
  }
  return {};
}

TEST(Summary, AnUnknownArchitectureIsComparedWithTheNearest) {
  std::vector<std::string> names = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"};
  for (const char* const block : {"0", "1", "2"}) {
    for (const char* const name :
         {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.o_proj.weight",
          "self_attn.surprise.weight", "mlp.up_proj.weight", "mlp.down_proj.weight", "input_layernorm.weight",
          "post_attention_layernorm.weight"}) {
      names.push_back(std::string("model.layers.") + block + "." + name);
    }
  }
  const std::string problem = problem_of(R"({"model_type": "unheard_of"})", names);
  const auto expect = [&](const char* part) { EXPECT_NE(problem.find(part), std::string::npos) << problem; };
  expect("models of type 'unheard_of' are not supported. This one has 3 blocks and");
  expect("the nearest that imago runs is llama, which has no 'layers.N.self_attn.surprise.weight'");
  expect(", and needs 'layers.N.mlp.gate_proj.weight'");
  expect("known are llama, mistral");
  EXPECT_NE(problem_of(R"({"model_type": "strange"})", {"x.99999999999999999999.y", "x.18446744073709551615.z"}), "");
}

}  // namespace
}  // namespace imago::models
