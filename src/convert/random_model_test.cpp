#include <gtest/gtest.h>

#include <cmath>

#include "files/tensor_file.h"
#include "imago/error.h"
#include "imago/models.h"
#include "models/decoder_tensors.h"
#include "models/traits_reading.h"
#include "testing/problems.h"
#include "testing/temp_dir.h"

namespace imago {
namespace {

using models::Traits;

constexpr const char* kConfigs[] = {
    R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96, "vocab_size": 600,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128})",
    R"({"model_type": "qwen3_5_moe_text", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_conv_kernel_dim": 4, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
        "full_attention_interval": 4, "vocab_size": 600, "max_position_embeddings": 128})",
    R"({"model_type": "gpt_oss", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96, "head_dim": 16,
        "num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": true, "num_local_experts": 4,
        "num_experts_per_tok": 2, "sliding_window": 8, "vocab_size": 600, "max_position_embeddings": 128})",
    R"({"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "state_size": 16, "conv_kernel": 4,
        "intermediate_size": 128, "time_step_rank": 8, "use_conv_bias": true, "vocab_size": 600})",
};

TEST(RandomModel, IsTheModelThatItsConfigDescribes) {
  for (const char* config : kConfigs) {
    const testing::TempDir temp;
    const std::string path = (temp.path() / "m.gguf").string();
    write_random_model(config, path, {.type = BlockFormat::q8_0});
    const files::TensorFile file = files::TensorFile::open(path);
    const Traits got = models::read_traits(file);
    const Traits wanted = models::config_traits(files::JsonFile::parse(config, "config.json"));
    EXPECT_EQ(got.architecture, wanted.architecture) << config;
    EXPECT_EQ(got.block, wanted.block) << config;
    EXPECT_EQ(got.experts, wanted.experts) << config;
    EXPECT_EQ(got.vocabulary, 600u) << config;
    EXPECT_EQ(got.tied_output, wanted.tied_output) << config;
    EXPECT_TRUE(models::DecoderTensors(file, got).unused().empty()) << config;
    bool packed = false;
    for (const files::StoredTensor& tensor : file.tensors()) {
      packed |= tensor.type == "Q8_0";
      const Tensor<float> values = file.gguf()->read_float32(tensor.name);
      for (const float value : values.values()) ASSERT_TRUE(std::isfinite(value)) << tensor.name;
    }
    EXPECT_TRUE(packed) << config;
  }
}

TEST(RandomModel, BiasesAreThereIfTheConfigSaysSo) {
  const testing::TempDir temp;
  const auto has = [&](const char* config, const char* tensor) {
    const std::string path = (temp.path() / "m.gguf").string();
    write_random_model(config, path, {.type = BlockFormat::q8_0});
    return GgufFile::open(path).find_tensor(tensor) != nullptr;
  };
  EXPECT_FALSE(has(kConfigs[0], "blk.0.attn_q.bias"));
  EXPECT_TRUE(has(kConfigs[2], "blk.0.attn_q.bias"));
  EXPECT_TRUE(has(kConfigs[3], "blk.1.ssm_conv1d.bias"));
}

TEST(RandomModel, TheSeedDecides) {
  const testing::TempDir temp;
  const auto made = [&](std::uint64_t seed, const char* name) {
    const std::string path = (temp.path() / name).string();
    write_random_model(kConfigs[0], path, {.type = BlockFormat::q4_0, .seed = seed});
    return GgufFile::open(path).read_float32("blk.1.ffn_down.weight");
  };
  const Tensor<float> first = made(1, "a.gguf");
  EXPECT_TRUE(std::ranges::equal(first.values(), made(1, "b.gguf").values()));
  EXPECT_FALSE(std::ranges::equal(first.values(), made(2, "c.gguf").values()));
}

TEST(RandomModel, RowsThatFitNoBlockTakeAnotherType) {
  const testing::TempDir temp;
  const std::string path = (temp.path() / "m.gguf").string();
  write_random_model(kConfigs[0], path, {.type = BlockFormat::q4_k, .ends = DType::float16});
  const GgufFile file = GgufFile::open(path);
  EXPECT_EQ(file.require_tensor("token_embd.weight").type.name, "F16");
  const GgufTensorType& type = file.require_tensor("blk.0.ffn_down.weight").type;
  EXPECT_LT(type.values, 256);
  EXPECT_GT(type.values, 1);
}

TEST(RandomModel, MistakesAreTold) {
  const testing::TempDir temp;
  const std::string path = (temp.path() / "m.gguf").string();
  const auto problem = [&](const char* config, const RandomModelOptions& options = {}) -> std::string {
    try {
      write_random_model(config, path, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  testing::expect_found(problem(R"({"model_type": "llama")"), "config.json");
  testing::expect_found(problem(R"({"model_type": "t5"})"), "models of type 't5' are not supported");
  testing::expect_found(
      problem(R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96,
                  "vocab_size": 9, "num_attention_heads": 4, "max_position_embeddings": 128})"),
      "9 tokens are too few");
  testing::expect_found(problem(kConfigs[0], {.type = DType::int4}), "GGUF cannot hold int4");
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace imago
