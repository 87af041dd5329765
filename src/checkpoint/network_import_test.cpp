// Networks out of tensors: where weights land, and what they compute.

#include "checkpoint/network_import.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "imago/error.h"
#include "testing/random_values.h"
#include "testing/temp_dir.h"
#include "testing/torch_models.h"

namespace imago {
namespace {

using nlohmann::json;
using testing::random_values;
using testing::TempDir;

std::vector<float> part(std::span<const float> values, std::size_t first, std::size_t count) {
  const std::span<const float> wanted = values.subspan(first, count);
  return {wanted.begin(), wanted.end()};
}

/// Layer `index` of the grid, or a layer inside it: {1, 0, 1} is layers.1.sequential_layers.0.sequential_layers.1.
const Layer& layer_at(const Network& network, std::initializer_list<std::size_t> path) {
  const Layer* layer = &network.layers()[*path.begin()];
  for (const std::size_t* index = path.begin() + 1; index != path.end(); ++index) layer = &layer->sub_layers[*index];
  return *layer;
}

class ReferenceDecoder : public ::testing::TestWithParam<const char*> {};

TEST_P(ReferenceDecoder, GivesTheLogitsOfTheReference) {
  const std::optional<std::string> path = testing::find_torch_model(GetParam());
  if (!path) GTEST_SKIP() << testing::missing_torch_model(GetParam());
  ImportedNetwork model = import_network(*path);
  EXPECT_TRUE(model.unmatched.empty()) << model.unmatched.front();
  EXPECT_TRUE(model.notes.empty()) << model.notes.front();
  const json reference = json::parse(std::ifstream(*path + "/reference.json"));
  const auto ids = reference.at("ids").get<std::vector<float>>();
  const auto wanted = reference.at("logits").get<std::vector<std::vector<double>>>();
  const Tensor<float>& logits = model.network.forward(Tensor<float>({ids.size()}, ids));
  ASSERT_EQ(logits.shape(), (Shape{ids.size(), wanted.front().size()}));
  double worst = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    worst =
        std::max(worst, std::abs(static_cast<double>(logits[i]) - wanted[i / wanted[0].size()][i % wanted[0].size()]));
  }
  EXPECT_LT(worst, 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Models, ReferenceDecoder,
                         ::testing::Values("llama_tied_f32", "llama_untied_bf16", "phi3_fused_f32", "qwen2_bias_f32",
                                           "qwen3_qknorm_f32", "smollm3_nope_f32"));

TEST(NetworkImport, RefusesWhatLayersCannotCompute) {
  for (const auto& [name, words] :
       std::vector<std::pair<std::string, std::string>>{{"exaone4_bf16", "windows of 8 keys (sliding_window)"},
                                                        {"gemma2_softcap_f32", "attn_logit_softcapping 50"},
                                                        {"gpt2_f32", "learned positions"},
                                                        {"granite_f32", "embedding_multiplier"},
                                                        {"llama3_rope_scaling_f16", "angles scaled by llama3"},
                                                        {"mistral_sliding_f32", "sliding_window"},
                                                        {"mixtral_moe_f32", "4 experts"},
                                                        {"olmo2_f32", "norms of whole rows"},
                                                        {"qwen3_moe_f32", "4 experts"}}) {
    const std::optional<std::string> path = testing::find_torch_model(name);
    if (!path) GTEST_SKIP() << testing::missing_torch_model(name);
    try {
      import_network(*path);
      ADD_FAILURE() << name << " was taken";
    } catch (const UnsupportedError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  }
}

/// A decoder of one block, width 8, 2 heads of 4, inner size 12, 10 tokens; tensors as a test wants them.
class SmallDecoder : public ::testing::Test {
 protected:
  SmallDecoder() {
    const std::vector<std::pair<std::string, Shape>> shapes = {{"model.embed_tokens.weight", {10, 8}},
                                                               {"model.layers.0.input_layernorm.weight", {8}},
                                                               {"model.layers.0.self_attn.q_proj.weight", {8, 8}},
                                                               {"model.layers.0.self_attn.k_proj.weight", {4, 8}},
                                                               {"model.layers.0.self_attn.v_proj.weight", {4, 8}},
                                                               {"model.layers.0.self_attn.o_proj.weight", {8, 8}},
                                                               {"model.layers.0.post_attention_layernorm.weight", {8}},
                                                               {"model.layers.0.mlp.gate_proj.weight", {12, 8}},
                                                               {"model.layers.0.mlp.up_proj.weight", {12, 8}},
                                                               {"model.layers.0.mlp.down_proj.weight", {8, 12}},
                                                               {"model.norm.weight", {8}}};
    unsigned seed = 0;
    for (const auto& [name, shape] : shapes) put(name, shape, random_values(shape.elements(), ++seed));
  }

  void put(const std::string& name, const Shape& shape, std::vector<float> values) {
    tensors_.insert_or_assign(name, Tensor<float>(shape, std::move(values)));
  }

  std::string write(const json& changes = json::object()) {
    json config = {{"model_type", "llama"},    {"hidden_size", 8},        {"num_attention_heads", 2},
                   {"num_key_value_heads", 1}, {"intermediate_size", 12}, {"num_hidden_layers", 1},
                   {"rms_norm_eps", 1e-5},     {"rope_theta", 5000.0}};
    config.merge_patch(changes);
    folder_.write("config.json", config.dump());
    std::vector<SafetensorsEntry> entries;
    for (const auto& [name, tensor] : tensors_) entries.push_back({name, SafetensorsType::f32, tensor.shape()});
    for (const auto& [name, bytes] : packed_) entries.push_back({name, SafetensorsType::u8, Shape{bytes.size()}});
    SafetensorsWriter writer(folder_.path() / "model.safetensors", entries);
    for (const SafetensorsEntry& entry : std::vector(writer.entries().begin(), writer.entries().end())) {
      if (const auto found = packed_.find(entry.name); found != packed_.end()) {
        writer.write(entry.name, found->second);
      } else {
        writer.write(entry.name, tensors_.at(entry.name).values());
      }
    }
    writer.commit();
    return folder_.path();
  }

  void expect_refusal(const std::string& words, const json& changes = json::object()) {
    const std::string path = write(changes);
    try {
      import_network(path);
      ADD_FAILURE() << "taken, instead of: " << words;
    } catch (const FormatError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  }

  std::vector<float> values(const std::string& name) const {
    const std::span<const float> all = tensors_.at("model.layers.0." + name).values();
    return {all.begin(), all.end()};
  }

  TempDir folder_;
  std::map<std::string, Tensor<float>> tensors_;
  std::map<std::string, std::vector<std::byte>> packed_;
};

TEST_F(SmallDecoder, EveryWeightLandsInItsPlace) {
  put("model.layers.0.self_attn.q_proj.bias", {8}, random_values(8, 51));
  put("model.layers.0.self_attn.v_proj.bias", {4}, random_values(4, 52));
  put("model.layers.0.mlp.down_proj.bias", {8}, random_values(8, 53));
  put("model.layers.0.self_attn.attn_sub_norm.weight", {8}, random_values(8, 54));
  put("model.layers.0.mlp.ffn_sub_norm.weight", {12}, random_values(12, 55));
  put("model.layers.0.self_attn.q_norm.weight", {4}, random_values(4, 56));
  put("model.layers.0.self_attn.rotary_emb.inv_freq", {2}, {1, 2});
  put("lm_head.weight", {10, 8}, random_values(80, 57));
  const ImportedNetwork model = checkpoint::import_network(files::TensorFile::open(write()), {.dtype = DType::int8});
  EXPECT_EQ(model.unmatched, std::vector<std::string>{"model.layers.0.self_attn.rotary_emb.inv_freq"});
  ASSERT_EQ(model.network.layers().size(), 4u);
  const Layer &norm = layer_at(model.network, {1, 0, 0}), &attend = layer_at(model.network, {1, 0, 1});
  const Layer &second_norm = layer_at(model.network, {1, 2, 0}), &swiglu = layer_at(model.network, {1, 2, 1});
  EXPECT_EQ(part(norm.weights->master(), 0, 8), values("input_layernorm.weight"));
  EXPECT_EQ(part(second_norm.weights->master(), 0, 8), values("post_attention_layernorm.weight"));
  const std::span<const float> attention = attend.weights->master();
  ASSERT_EQ(attention.size(), 64u + 32 + 32 + 64 + 8 + 4 + 4 + 8);
  EXPECT_EQ(part(attention, 0, 64), values("self_attn.q_proj.weight"));
  EXPECT_EQ(part(attention, 64, 32), values("self_attn.k_proj.weight"));
  EXPECT_EQ(part(attention, 96, 32), values("self_attn.v_proj.weight"));
  EXPECT_EQ(part(attention, 128, 64), values("self_attn.o_proj.weight"));
  EXPECT_EQ(part(attention, 192, 8), values("self_attn.q_proj.bias"));
  EXPECT_EQ(part(attention, 200, 4), std::vector<float>(4));
  EXPECT_EQ(part(attention, 204, 4), values("self_attn.v_proj.bias"));
  EXPECT_EQ(part(attention, 208, 8), std::vector<float>(8));
  const std::span<const float> feed_forward = swiglu.weights->master();
  ASSERT_EQ(feed_forward.size(), 3 * 96u + 12 + 12 + 8);
  EXPECT_EQ(part(feed_forward, 0, 96), values("mlp.gate_proj.weight"));
  EXPECT_EQ(part(feed_forward, 96, 96), values("mlp.up_proj.weight"));
  EXPECT_EQ(part(feed_forward, 192, 96), values("mlp.down_proj.weight"));
  EXPECT_EQ(part(feed_forward, 312, 8), values("mlp.down_proj.bias"));
  EXPECT_EQ(attend.config.inner_norm, values("self_attn.attn_sub_norm.weight"));
  EXPECT_EQ(swiglu.config.inner_norm, values("mlp.ffn_sub_norm.weight"));
  EXPECT_EQ(attend.config.q_norm, values("self_attn.q_norm.weight"));
  EXPECT_TRUE(attend.config.k_norm.empty());
  EXPECT_EQ(attend.config.rope_freq_base, 5000);
  const Layer &first = model.network.layers()[0], &last_norm = model.network.layers()[2];
  const Layer& head = model.network.layers()[3];
  for (const Layer* layer : {&norm, &attend, &second_norm, &swiglu, &last_norm}) {
    EXPECT_EQ(layer->config.rms_norm_eps, 1e-5);
  }
  EXPECT_EQ(norm.config.dtype, DType::float32);
  EXPECT_EQ(attend.config.dtype, DType::int8);
  EXPECT_EQ(swiglu.config.dtype, DType::int8);
  EXPECT_TRUE(std::ranges::equal(first.weights->master(), tensors_.at("model.embed_tokens.weight").values()));
  EXPECT_TRUE(std::ranges::equal(last_norm.weights->master(), tensors_.at("model.norm.weight").values()));
  EXPECT_TRUE(std::ranges::equal(head.weights->master(), tensors_.at("lm_head.weight").values()));
}

TEST_F(SmallDecoder, TernaryCodesAndTheirScales) {
  // Byte (r, c) of [2, 8] for a matrix of [8, 8]: codes of the rows r, 2 + r, 4 + r, 6 + r.
  std::vector<std::byte> bytes(16, std::byte{0b01010101});  // zeros
  bytes[3] = std::byte{0b10'01'00'10};                      // row 0: +1, row 2: -1, row 4: 0, row 6: +1
  bytes[8 + 5] = std::byte{0b11'00'01'01};                  // row 5: -1, row 7: 3 is 0
  tensors_.erase("model.layers.0.self_attn.q_proj.weight");
  packed_["model.layers.0.self_attn.q_proj.weight"] = bytes;
  put("model.layers.0.self_attn.q_proj.weight_scale", {1}, {0.25f});
  put("model.layers.0.self_attn.k_proj.weight_scale", {1}, {0.5f});
  const ImportedNetwork model = import_network(write());
  std::vector<float> wanted(64);
  wanted[0 * 8 + 3] = wanted[6 * 8 + 3] = 0.25f;
  wanted[2 * 8 + 3] = wanted[5 * 8 + 5] = -0.25f;
  const std::span<const float> attention = layer_at(model.network, {1, 0, 1}).weights->master();
  EXPECT_EQ(part(attention, 0, 64), wanted);
  EXPECT_EQ(part(attention, 64, 32), values("self_attn.k_proj.weight"));
  ASSERT_EQ(model.notes.size(), 1u);
  EXPECT_NE(model.notes[0].find("k_proj.weight' is not ternary"), std::string::npos);
}

TEST_F(SmallDecoder, WhatDoesNotFitIsRefusedByName) {
  expect_refusal("states 3 blocks", {{"num_hidden_layers", 3}});
  expect_refusal("hidden_size", {{"hidden_size", nullptr}});
  expect_refusal("'model.layers.0.mlp.gate_proj.weight' has the shape [12, 8]", {{"intermediate_size", 13}});
  expect_refusal("cannot share", {{"num_key_value_heads", 3}});
  expect_refusal("rms_norm_eps", {{"rms_norm_eps", -1}});
  expect_refusal("num_hidden_layers", {{"num_hidden_layers", 1e30}});
  tensors_.erase("model.layers.0.mlp.up_proj.weight");
  expect_refusal("block 0 has no up_proj");
  put("model.layers.0.mlp.up_proj.weight", {12, 8}, random_values(96, 9));
  put("model.layers.0.mlp.w3.weight", {12, 8}, random_values(96, 9));
  expect_refusal("are for the same place");
  tensors_.erase("model.layers.0.mlp.w3.weight");
  put("model.layers.7.mlp.up_proj.weight", {12, 8}, random_values(96, 9));
  expect_refusal("indices up to 7");
}

// ---- layers that are guessed

/// Gamma-like: about 1; bias-like: about 0.05.
std::vector<float> around(std::size_t count, float centre) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = centre * (1 + 0.1f * static_cast<float>(i % 3));
  return values;
}

ImportedNetwork guess(const std::vector<std::pair<std::string, Tensor<float>>>& tensors,
                      const ImportOptions& options = {}) {
  const TempDir folder;
  const std::string path = folder.path() / "some.safetensors";
  save_safetensors(path, tensors);
  return import_network(path, options);
}

Tensor<float> matrix(std::size_t rows, std::size_t cols, unsigned seed) {
  return {Shape{rows, cols}, random_values(rows * cols, seed)};
}
Tensor<float> vector(std::size_t count, float centre) { return {Shape{count}, around(count, centre)}; }

std::vector<LayerType> types_of(const ImportedNetwork& model) {
  std::vector<LayerType> types;
  for (const Layer& layer : model.network.layers()) types.push_back(layer.config.type);
  return types;
}

TEST(GuessedImport, FindsEveryKindOfLayerByItsShapes) {
  using enum LayerType;
  const ImportedNetwork model = guess({{"a.q", matrix(12, 12, 1)},
                                       {"a.k", matrix(12, 12, 2)},
                                       {"a.v", matrix(12, 12, 3)},
                                       {"a.o", matrix(12, 12, 4)},
                                       {"a.bias", vector(12, 0.05f)},
                                       {"b.ih", matrix(20, 5, 5)},
                                       {"b.hh", matrix(20, 5, 6)},
                                       {"c.gate", matrix(30, 6, 7)},
                                       {"c.up", matrix(30, 6, 8)},
                                       {"c.down", matrix(6, 30, 9)},
                                       {"d.gamma", vector(14, 1)},
                                       {"d.offset", vector(14, 0.05f)},
                                       {"e.gamma", vector(15, 1)},
                                       {"f.kernel", {Shape{4, 3, 5, 5}, random_values(300, 10)}},
                                       {"g.kernel", {Shape{4, 3, 7}, random_values(84, 11)}},
                                       {"h.table", matrix(111, 11, 12)},
                                       {"i.dense", matrix(13, 17, 13)},
                                       {"i.bias", vector(13, 0.05f)},
                                       {"j.odd", vector(19, 0.3f)},
                                       {"k.steps", vector(3, 1)}},
                                      {.heads = 3});
  EXPECT_EQ(types_of(model), (std::vector<LayerType>{multi_head_attention, lstm, swiglu, layer_norm, rms_norm, cnn2,
                                                     cnn1, embedding, dense}));
  EXPECT_EQ(model.unmatched, std::vector<std::string>{"j.odd"});
  model.network.check();
  const std::span<const Layer> layers = model.network.layers();
  // Names are sorted: a.bias, a.k, a.o, a.q, a.v; the matrices are taken in that order.
  EXPECT_EQ(part(layers[0].weights->master(), 0, 144), random_values(144, 2));
  EXPECT_EQ(part(layers[0].weights->master(), 3 * 144, 144), random_values(144, 3));
  EXPECT_EQ(part(layers[0].weights->master(), 4 * 144, 12), around(12, 0.05f));
  EXPECT_EQ(part(layers[0].weights->master(), 4 * 144 + 12, 36), std::vector<float>(36));
  EXPECT_EQ(layers[0].config.num_heads, 3);
  // b.hh comes before b.ih: gates of the first are taken for the input.
  const std::vector<float> hh = random_values(100, 6), ih = random_values(100, 5);
  EXPECT_EQ(part(layers[1].weights->master(), 55, 25), part(hh, 25, 25));
  EXPECT_EQ(part(layers[1].weights->master(), 80, 25), part(ih, 25, 25));
  EXPECT_EQ(part(layers[1].weights->master(), 50, 5), std::vector<float>(5));
  EXPECT_EQ(part(layers[2].weights->master(), 360, 180), random_values(180, 9));
  EXPECT_EQ(part(layers[3].weights->master(), 0, 14), around(14, 1));
  EXPECT_EQ(part(layers[3].weights->master(), 14, 14), around(14, 0.05f));
  EXPECT_EQ(layers[5].config.kernel_size, 5);
  EXPECT_EQ(part(layers[8].weights->master(), 0, 221), random_values(221, 13));
  const auto noted = [&](std::string_view words) {
    return std::ranges::any_of(model.notes,
                               [&](const std::string& note) { return note.find(words) != std::string::npos; });
  };
  EXPECT_TRUE(noted("'i.bias' seems to be the bias of 'i.dense'"));
  EXPECT_TRUE(noted("'k.steps'"));
  EXPECT_TRUE(noted("'f.kernel' does not tell the size of its input"));
}

TEST(GuessedImport, HintsComeFirst) {
  using enum LayerType;
  const std::vector<std::pair<std::string, Tensor<float>>> tensors = {
      {"a", matrix(12, 12, 1)}, {"b", matrix(12, 12, 2)}, {"c", matrix(12, 12, 3)}, {"d", matrix(12, 12, 4)}};
  EXPECT_EQ(types_of(guess(tensors)), std::vector<LayerType>{multi_head_attention});
  EXPECT_EQ(types_of(guess(tensors, {.hints = {{2, embedding}}})),
            (std::vector<LayerType>{embedding, dense, dense, dense}));
  EXPECT_THROW(guess(tensors, {.heads = 5}), UsageError);
  EXPECT_THROW(guess(tensors, {.hints = {{0, lstm}}}), UsageError);
  EXPECT_THROW(guess(tensors, {.hints = {{4, dense}}}), UsageError);
  EXPECT_THROW(guess({{"a", vector(2, 1)}}), FormatError);
}

TEST(GuessedImport, ALayerOfOneTensorKeepsItsCodes) {
  const TempDir folder;
  const std::string path = folder.path() / "codes.safetensors";
  SafetensorsWriter writer(path, {{"a", SafetensorsType::i8, {4, 5}}, {"b", SafetensorsType::bf16, {4, 5}}});
  std::vector<std::byte> codes(20), halves(40);
  for (std::size_t i = 0; i < 20; ++i) codes[i] = static_cast<std::byte>(static_cast<int>(i) * 12 - 120);
  writer.write("a", codes);
  writer.write("b", halves);
  writer.commit();
  const ImportedNetwork model = import_network(path);
  const std::span<const Layer> layers = model.network.layers();
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[0].config.dtype, DType::int8);
  EXPECT_TRUE(std::ranges::equal(layers[0].weights->morph(DType::int8)->codes(), codes));
  EXPECT_EQ(layers[0].weights->master()[19], 108);
  EXPECT_EQ(layers[1].config.dtype, DType::bfloat16);
}

TEST(NetworkImport, OtherFormsAreRefused) {
  const TempDir folder;
  const std::string path = folder.path() / "net.json";
  save_network(Network(layer_list(dense(2, 2))), path);
  EXPECT_THROW(import_network(path), UnsupportedError);
}

}  // namespace
}  // namespace imago
