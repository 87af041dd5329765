// Roles of the models that transformers made, and files that lack or contradict what their configs say (threats.md 54).

#include "models/decoder_tensors.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "imago/codec.h"
#include "imago/error.h"
#include "models/architectures.h"
#include "models/tensor_layout.h"
#include "testing/problems.h"
#include "testing/safetensors.h"
#include "testing/temp_dir.h"
#include "testing/torch_models.h"

namespace imago::models {
namespace {

using testing::expect_found;

using files::TensorFile;

std::vector<float> decoded(const WeightSlice& slice) {
  std::vector<float> values(slice.rows * slice.cols);
  decode_slice(slice, values);
  return values;
}

TEST(DecoderTensors, EveryTensorOfEveryModelHasARole) {
  for (const std::string model : testing::kTorchModels) {
    const std::optional<std::string> folder = testing::find_torch_model(model);
    if (!folder) GTEST_SKIP() << testing::missing_torch_model(model);
    const TensorFile file = TensorFile::open(*folder);
    const Traits traits = read_traits(file);
    const DecoderTensors tensors(file, traits);
    EXPECT_TRUE(tensors.unused().empty()) << model << ": " << tensors.unused()[0];
    EXPECT_EQ(tensors.find(Role::output).has_value(), !traits.tied_output) << model;
    EXPECT_EQ(tensors.find(Role::gate).has_value(), traits.gated) << model;
    EXPECT_EQ(tensors.find(Role::query_bias, 1).has_value(), model == "qwen2_bias_f32" || model == "gpt2_f32") << model;
    EXPECT_FALSE(tensors.find(Role::query, traits.blocks)) << model;
    const WeightSlice down = tensors.require(Role::down, traits.blocks - 1, traits.experts > 0 ? 3 : 0);
    EXPECT_EQ(down.rows, traits.width);
    EXPECT_EQ(down.cols, traits.block.back().feed_forward);
    EXPECT_THROW(tensors.require(Role::rope_factors), FormatError);
  }
}

TEST(DecoderTensors, FusedProjectionsAreRowsOfOneTensor) {
  const std::optional<std::string> folder = testing::find_torch_model("phi3_fused_f32");
  if (!folder) GTEST_SKIP() << testing::missing_torch_model("phi3_fused_f32");
  const TensorFile file = TensorFile::open(*folder);
  const DecoderTensors tensors(file, read_traits(file));
  const testing::SafetensorsFile plain(*folder + "/model.safetensors");
  const std::vector<float> qkv = plain.values<float>("model.layers.1.self_attn.qkv_proj.weight");
  const std::vector<float> both = plain.values<float>("model.layers.1.mlp.gate_up_proj.weight");
  const auto rows = [](const std::vector<float>& all, std::ptrdiff_t first, std::ptrdiff_t count) {
    return std::vector<float>(all.begin() + first * 64, all.begin() + (first + count) * 64);
  };
  EXPECT_EQ(decoded(tensors.require(Role::query, 1)), rows(qkv, 0, 64));
  EXPECT_EQ(decoded(tensors.require(Role::key, 1)), rows(qkv, 64, 32));
  EXPECT_EQ(decoded(tensors.require(Role::value, 1)), rows(qkv, 96, 32));
  EXPECT_EQ(decoded(tensors.require(Role::gate, 1)), rows(both, 0, 128));
  EXPECT_EQ(decoded(tensors.require(Role::up, 1)), rows(both, 128, 128));
}

TEST(DecoderTensors, Gpt2IsTurnedRound) {
  const std::optional<std::string> folder = testing::find_torch_model("gpt2_f32");
  if (!folder) GTEST_SKIP() << testing::missing_torch_model("gpt2_f32");
  const TensorFile file = TensorFile::open(*folder);
  const DecoderTensors tensors(file, read_traits(file));
  const testing::SafetensorsFile plain(*folder + "/model.safetensors");
  const std::vector<float> fused = plain.values<float>("transformer.h.0.attn.c_attn.weight");  // [64][192]
  const std::vector<float> key = decoded(tensors.require(Role::key, 0));
  ASSERT_EQ(key.size(), 64U * 64U);
  for (std::size_t row = 0; row < 64; ++row) {
    for (std::size_t col = 0; col < 64; ++col) ASSERT_EQ(key[row * 64 + col], fused[col * 192 + 64 + row]);
  }
  const std::vector<float> biases = plain.values<float>("transformer.h.0.attn.c_attn.bias");
  EXPECT_EQ(decoded(tensors.require(Role::value_bias, 0)), std::vector<float>(biases.begin() + 128, biases.end()));
  EXPECT_THROW(decode_slice(tensors.require(Role::key, 0), {}), ShapeError);
}

TEST(DecoderTensors, PartsOfATransposedTensorAreReadAlone) {
  // [64][96], of every kind that stored rows can be cut in: bytes, halves of bytes with scales, blocks of 32.
  constexpr std::size_t kCols = 64, kRows = 96;
  std::vector<float> values(kCols * kRows);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 15) - 7;
  for (const Format format : {Format(DType::float16), Format(DType::int4), Format(BlockFormat::q8_0)}) {
    std::vector<std::byte> bytes(packed_bytes(format, values.size()));
    files::StoredTensor tensor;
    tensor.name = "c_attn";
    tensor.format = format;
    tensor.shape = {kCols, kRows};
    if (format.is_block()) {
      encode(format.block(), values, bytes);
    } else {
      if (is_scaled(format.dtype())) tensor.scale_values = {1}, tensor.scale_group = values.size();
      encode(format.dtype(), values, {tensor.scale_values, values.size()}, bytes);
    }
    tensor.bytes = bytes;
    std::vector<float> stored(values.size());
    files::decode_tensor(tensor, 0, stored);
    for (const auto& [first, rows] : {std::pair(0, 96), std::pair(32, 32), std::pair(5, 3), std::pair(90, 6)}) {
      const WeightSlice slice{&tensor, static_cast<std::size_t>(first), static_cast<std::size_t>(rows), kCols, true};
      const std::vector<float> got = decoded(slice);
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i], stored[i % kCols * kRows + slice.first_row + i / kCols]) << format.name() << ' ' << first;
      }
    }
  }
}

/// A llama of one block, as a folder.
class SmallFolder {
 public:
  SmallFolder() : folder_(std::make_unique<testing::TempDir>()) {
    config_ = {{"model_type", "llama"},  {"hidden_size", 4},     {"num_attention_heads", 2},
               {"num_hidden_layers", 1}, {"vocab_size", 5},      {"intermediate_size", 6},
               {"head_dim", 2},          {"rms_norm_eps", 1e-5}, {"max_position_embeddings", 8}};
    const std::string block = "model.layers.0.";
    shapes_ = {{"model.embed_tokens.weight", {5, 4}},
               {"model.norm.weight", {4}},
               {"lm_head.weight", {5, 4}},
               {block + "input_layernorm.weight", {4}},
               {block + "post_attention_layernorm.weight", {4}},
               {block + "self_attn.q_proj.weight", {4, 4}},
               {block + "self_attn.k_proj.weight", {4, 4}},
               {block + "self_attn.v_proj.weight", {4, 4}},
               {block + "self_attn.o_proj.weight", {4, 4}},
               {block + "mlp.gate_proj.weight", {6, 4}},
               {block + "mlp.up_proj.weight", {6, 4}},
               {block + "mlp.down_proj.weight", {4, 6}}};
  }
  nlohmann::json& config() { return config_; }
  std::map<std::string, Shape>& shapes() { return shapes_; }

  std::string problem() {
    try {
      const TensorFile file = open();
      const DecoderTensors tensors(file, read_traits(file));
      return tensors.unused().empty() ? "no error" : "unused: " + tensors.unused()[0];
    } catch (const FormatError& error) {
      return error.what();
    }
  }

  TensorFile open() {
    folder_->write("config.json", config_.dump());
    std::vector<std::pair<std::string, Tensor<float>>> tensors;
    for (const auto& entry : shapes_) tensors.emplace_back(entry.first, Tensor<float>(entry.second));
    save_safetensors((folder_->path() / "model.safetensors").string(), tensors);
    return TensorFile::open(folder_->path().string());
  }

 private:
  std::unique_ptr<testing::TempDir> folder_;
  nlohmann::json config_;
  std::map<std::string, Shape> shapes_;
};

TEST(DecoderTensors, Case54Shapes) {
  EXPECT_EQ(SmallFolder().problem(), "no error");
  SmallFolder folder;
  folder.shapes()["model.layers.0.mlp.up_proj.weight"] = {6, 5};
  expect_found(
      folder.problem(),
      "tensor 'model.layers.0.mlp.up_proj.weight' has shape [6, 5], but the fields of config.json ask for [6, 4]");
  folder = SmallFolder();
  folder.config()["vocab_size"] = 6;
  expect_found(folder.problem(), "has shape [5, 4], but the fields of config.json ask for [6, 4] (a vocabulary of 6");
  folder = SmallFolder();
  folder.shapes()["model.norm.weight"] = {1, 4};
  expect_found(folder.problem(), "tensor 'model.norm.weight' has shape [1, 4]");
}

TEST(DecoderTensors, Case54MissingAndUnexpected) {
  SmallFolder folder;
  folder.shapes().erase("model.layers.0.self_attn.k_proj.weight");
  folder.shapes().erase("lm_head.weight");
  expect_found(folder.problem(),
               "2 tensors are missing that a llama of 1 blocks needs: 'lm_head.weight', "
               "'model.layers.0.self_attn.k_proj.weight'");
  folder = SmallFolder();  // more than are worth listing
  folder.config()["num_hidden_layers"] = 4096;
  expect_found(folder.problem(), "8 or more tensors are missing that a llama of 4096 blocks needs: 'model.layers.1.");
  folder = SmallFolder();  // tied, and absent from both places
  folder.config()["tie_word_embeddings"] = true;
  folder.shapes().erase("lm_head.weight");
  EXPECT_EQ(folder.problem(), "no error");
  folder.shapes().erase("model.embed_tokens.weight");
  expect_found(folder.problem(), "1 tensors are missing that a llama of 1 blocks needs: 'model.embed_tokens.weight'");
  folder = SmallFolder();
  folder.shapes()["model.layers.0.self_attn.rotary_emb.inv_freq"] = {1};
  EXPECT_EQ(folder.problem(), "no error");
  folder.shapes()["vision.patch.weight"] = {3, 3};
  EXPECT_EQ(folder.problem(), "unused: vision.patch.weight");
}

TEST(DecoderTensors, FoldersOfABareModelLackThePrefix) {
  SmallFolder folder;
  std::map<std::string, Shape> bare;
  for (const auto& [name, shape] : folder.shapes()) {
    bare[name.rfind("model.", 0) == 0 ? name.substr(6) : name] = shape;
  }
  folder.shapes() = bare;
  EXPECT_EQ(folder.problem(), "no error");
}

TEST(DecoderTensors, LanguageModelsBesideEncodersHaveLongerNames) {
  for (const bool newer : {false, true}) {
    SmallFolder folder;
    std::map<std::string, Shape> longer;
    for (const auto& [name, shape] : folder.shapes()) {
      const bool inner = name.rfind("model.", 0) == 0;
      longer[!newer ? "language_model." + name : inner ? "model.language_model." + name.substr(6) : name] = shape;
    }
    longer["vision_tower.patch.weight"] = {2, 2};
    longer["model.multi_modal_projector.weight"] = {2, 2};
    folder.shapes() = longer;
    folder.config() = {
        {"model_type", "some_images_too"}, {"text_config", folder.config()}, {"tie_word_embeddings", false}};
    EXPECT_EQ(folder.problem(), "no error");
    const TensorFile file = folder.open();
    const DecoderTensors tensors(file, read_traits(file));
    EXPECT_EQ(encoder_note(tensors),
              "the language model is used without its encoders of images or sounds: 2 tensors are left out");
  }
}

TEST(DecoderTensors, RowsOfHeadsMayBeMixed) {
  // Two groups of heads, each with the rows of two queries, of the key and of the value.
  Traits traits = traits_of(Architecture::falcon);
  traits.width = 2;
  traits.heads = 4;
  traits.kv_heads = 2;
  traits.head_values = 2;
  traits.blocks = 1;
  traits.block.resize(1);
  const auto layout = block_layout(traits, usual_naming(traits, false), 0);
  const auto fused =
      std::ranges::find(layout, "transformer.h.0.self_attention.query_key_value.weight", &LayoutTensor::name);
  ASSERT_NE(fused, layout.end());
  EXPECT_EQ(fused->groups, 2U);
  std::vector<float> rows(16 * 2);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i / 2);
  files::StoredTensor tensor;
  tensor.name = "qkv";
  tensor.format = DType::float32;
  tensor.shape = {16, 2};
  tensor.bytes = std::as_bytes(std::span(rows));
  const auto rows_of = [&](const WeightSlice& slice) {
    std::vector<float> found;
    const std::vector<float> values = decoded(slice);
    for (std::size_t i = 0; i < values.size(); i += 2) found.push_back(values[i]);
    return found;
  };
  WeightSlice query{&tensor, 0, 8, 2}, value{&tensor, 6, 4, 2};
  query.group_rows = value.group_rows = 8;
  query.rows_per_group = 4;
  value.rows_per_group = 2;
  EXPECT_EQ(rows_of(query), (std::vector<float>{0, 1, 2, 3, 8, 9, 10, 11}));
  EXPECT_EQ(rows_of(value), (std::vector<float>{6, 7, 14, 15}));
  EXPECT_EQ(rows_of(query.part(3, 3)), (std::vector<float>{3, 8, 9}));
  EXPECT_FALSE(query.contiguous());
}

TEST(DecoderTensors, ExpertsInOneTensor) {
  SmallFolder folder;
  folder.config().merge_patch({{"model_type", "mixtral"}, {"num_local_experts", 3}, {"num_experts_per_tok", 1}});
  for (const char* name : {"gate", "up", "down"}) {
    folder.shapes().erase(std::string("model.layers.0.mlp.") + name + "_proj.weight");
  }
  folder.shapes()["model.layers.0.mlp.gate.weight"] = {3, 4};
  folder.shapes()["model.layers.0.mlp.experts.gate_up_proj"] = {3, 12, 4};
  folder.shapes()["model.layers.0.mlp.experts.down_proj"] = {3, 4, 6};
  EXPECT_EQ(folder.problem(), "no error");
  folder.config()["num_local_experts"] = 4096;  // a hostile count ends at the shape
  expect_found(folder.problem(), "but the fields of config.json ask for [4096, ");
}

}  // namespace
}  // namespace imago::models
