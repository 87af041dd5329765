#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "base/file.h"
#include "imago/error.h"
#include "testing/temp_dir.h"

namespace imago {
namespace {

// The example of docs/formats/checkpoint.md
const std::string kExample = R"({
  "id": "network",
  "depth": 1,
  "rows": 1,
  "cols": 1,
  "layers_per_cell": 1,
  "layers": [
    {
      "z": 0,
      "y": 0,
      "x": 0,
      "l": 0,
      "type": "Dense",
      "activation": "Linear",
      "dtype": "float32",
      "input_height": 2,
      "output_height": 1,
      "softmax_type": "Standard",
      "weights": "AAAAPwAAgL8=",
      "native": true,
      "scale": 1
    }
  ]
})";

/// A 1×1×1×1 network of one layer with these keys.
std::string network_of(std::string_view layer_keys) {
  return R"({"depth":1,"rows":1,"cols":1,"layers_per_cell":1,"layers":[{)" + std::string(layer_keys) + "}]}";
}

const Layer& only_layer(const Network& network) { return network.layers().front(); }

std::vector<float> master_of(const Network& network) {
  const std::span<const float> master = only_layer(network).weights->master();
  return {master.begin(), master.end()};
}

TEST(Checkpoint, TheExampleOfTheSpec) {
  const Network network = deserialize_network(kExample);
  EXPECT_EQ(master_of(network), (std::vector<float>{0.5f, -1}));
  EXPECT_EQ(serialize_network(network), kExample);
}

TEST(Checkpoint, OrderSpacingUnknownKeysAndNullDoNotMatter) {
  const Network network = deserialize_network(
      R"({"layers":[{"scale":1e0,"native":true,"weights":"AAAAPwAAgL8=","future":{"a":[1]},"tile_size":null,)"
      R"("output_height":1.0,"input_height":2,"dtype":"F32","type":"dense","activation":"LINEAR"}],)"
      R"("layers_per_cell":1,"cols":1,"rows":1e0,"depth":1,"id":null})");
  EXPECT_EQ(serialize_network(network), kExample);
}

TEST(Checkpoint, EverySettingIsKept) {
  const std::string text = R"({
  "id": "net \u003c1\u003e",
  "depth": 1,
  "rows": 1,
  "cols": 1,
  "layers_per_cell": 2,
  "layers": [
    {
      "z": 0,
      "y": 0,
      "x": 0,
      "l": 0,
      "type": "Parallel",
      "activation": "Silu",
      "dtype": "int8",
      "input_height": 1,
      "input_width": 2,
      "input_depth": 3,
      "output_height": 4,
      "output_width": 5,
      "output_depth": 6,
      "input_channels": 7,
      "filters": 8,
      "kernel_size": 9,
      "stride": 10,
      "padding": 11,
      "output_padding": 12,
      "num_heads": 13,
      "num_kv_heads": 14,
      "head_dim": 15,
      "query_dim": 16,
      "d_model": 17,
      "seq_length": -18,
      "rope_freq_base": 1e-7,
      "vocab_size": 19,
      "embedding_dim": 20,
      "num_clusters": 21,
      "kmeans_temperature": 0.1,
      "output_mode": "features",
      "softmax_type": "Entmax",
      "temperature": 1e+21,
      "softmax_rows": 22,
      "softmax_cols": 23,
      "entmax_alpha": 1.5,
      "gumbel_noise": true,
      "parallel_branches": [
        {
          "z": 1,
          "y": 2,
          "x": 3,
          "l": 4,
          "type": "Residual",
          "activation": "Linear",
          "dtype": "float32",
          "softmax_type": "Standard",
          "is_remote_link": true,
          "target_z": 5,
          "target_l": 6
        }
      ],
      "combine_mode": "filter",
      "use_tiling": true,
      "tile_size": 24,
      "is_disabled": true,
      "rms_norm_eps": 0.00001,
      "max_seq_len": 25,
      "q_norm": "AAAAPw==",
      "k_norm": "AACAPwAAgD8=",
      "inner_norm": "AAAAQA==",
      "mask": [
        true,
        false
      ],
      "hierarchy_levels": [
        2,
        3
      ],
      "filter_gate": {
        "z": 0,
        "y": 0,
        "x": 0,
        "l": 0,
        "type": "Softmax",
        "activation": "ReLU",
        "dtype": "float32",
        "softmax_type": "Masked"
      },
      "granularity": "group",
      "group": 32
    },
    {
      "z": 0,
      "y": 0,
      "x": 0,
      "l": 1,
      "type": "Metacognition",
      "activation": "Linear",
      "dtype": "float32",
      "softmax_type": "Standard",
      "meta_rules": [
        {
          "Condition": 1,
          "Threshold": 0.1,
          "Command": 90.1,
          "Param": 0.3,
          "Cooldown": 5,
          "SelfOnly": true
        }
      ],
      "meta_source": "stats",
      "meta_effect": "gate",
      "meta_network": {
        "id": "inner",
        "depth": 1,
        "rows": 1,
        "cols": 1,
        "layers_per_cell": 1,
        "layers": [
          {
            "z": 0,
            "y": 0,
            "x": 0,
            "l": 0,
            "type": "Residual",
            "activation": "Linear",
            "dtype": "float32",
            "softmax_type": "Standard"
          }
        ]
      }
    }
  ]
})";
  EXPECT_EQ(serialize_network(deserialize_network(text)), text);
}

TEST(Checkpoint, CellsThatAreNotListedAreDenseWithoutWeights) {
  const Network network = deserialize_network(R"({"depth":1,"rows":2,"cols":1,"layers_per_cell":1,"layers":[]})");
  EXPECT_EQ(network.layers().size(), 2u);
  EXPECT_EQ(only_layer(network).config.activation, Activation::relu);
  EXPECT_FALSE(only_layer(network).weights);
  const std::string text = serialize_network(network);
  EXPECT_EQ(serialize_network(deserialize_network(text)), text);
}

TEST(Checkpoint, AMasterIsQuantizedOnDemand) {
  const Network network = deserialize_network(
      network_of(R"("type":"Dense","dtype":"int8","input_height":2,"output_height":1,"weights":"AAAAPwAAgL8=")"));
  EXPECT_EQ(master_of(network), (std::vector<float>{0.5f, -1}));
  const std::string text = serialize_network(network);
  EXPECT_NE(text.find("\"native\": true"), std::string::npos);
  EXPECT_NE(text.find("\"weights\": \"QIE=\""), std::string::npos) << text;  // 64 and -127 times 1/127
  EXPECT_EQ(serialize_network(deserialize_network(text)), text);
}

TEST(Checkpoint, OldSixteenBitFloatsAreToldByTheirLength) {
  const Network network = deserialize_network(network_of(
      R"("type":"Dense","dtype":"bf16","native":true,"input_height":2,"output_height":1,"weights":"AAAAPwAAgL8=")"));
  EXPECT_EQ(master_of(network), (std::vector<float>{0.5f, -1}));
  EXPECT_NE(serialize_network(network).find("\"weights\": \"AD+Avw==\""), std::string::npos);
}

TEST(Checkpoint, AScaleThatIsAbsentActsAsOneAndStaysAbsent) {
  const Network network = deserialize_network(
      network_of(R"("dtype":"int4","native":true,"input_height":3,"output_height":1,"weights":"H3A=")"));
  EXPECT_EQ(master_of(network), (std::vector<float>{1, -1, 7}));
  EXPECT_EQ(serialize_network(network).find("\"scale\""), std::string::npos);
}

TEST(Checkpoint, WeightsOnAMetacognitionWrapperAreIgnored) {
  const Network network =
      deserialize_network(network_of(R"("type":"META","dtype":"int8","weights":"AAAA","native":true,"scale":2)"));
  EXPECT_FALSE(only_layer(network).weights);
  EXPECT_EQ(serialize_network(network).find("weights"), std::string::npos);
}

TEST(Checkpoint, LegacyFp4IsAnOption) {
  const std::string text =
      network_of(R"("dtype":"fp4","native":true,"input_height":2,"output_height":1,"weights":"Gg==","scale":2)");
  EXPECT_EQ(master_of(deserialize_network(text)), (std::vector<float>{1, -2}));
  EXPECT_EQ(master_of(deserialize_network(text, {.fp4 = Fp4Table::legacy})), (std::vector<float>{1.5f, -2}));
}

TEST(Architecture, GetsFreshWeightsFromTheSeed) {
  const std::string text = network_of(
      R"("type":"Sequential","sequential_layers":[{"type":"Dense","input_height":3,"output_height":2,"weights":"AAAA"},)"
      R"({"type":"Softmax","softmax_type":3}])");
  const Network network = build_network_from_json(text, 7);
  const Layer& dense = only_layer(network).sub_layers.at(0);
  ASSERT_TRUE(dense.weights);
  EXPECT_EQ(dense.weights->count(), 6u);
  EXPECT_EQ(dense.config.activation, Activation::linear) << "a parsed layer that names none";
  EXPECT_EQ(only_layer(network).sub_layers.at(1).config.softmax_type, SoftmaxType::temperature);
  EXPECT_EQ(serialize_network(build_network_from_json(text, 7)), serialize_network(network));
  EXPECT_NE(serialize_network(build_network_from_json(text, 8)), serialize_network(network));
}

TEST(NetworkFile, SavesByExtensionAndLoadsByContent) {
  const testing::TempDir folder;
  const Network network = deserialize_network(kExample);
  const std::string json = folder.path() / "a.json", entity = folder.path() / "a.entity";
  save_network(network, json);
  EXPECT_EQ(MappedFile::open(json).text(), kExample);
  save_network(network, entity);
  folder.write("odd.name", std::string(MappedFile::open(entity).text()));
  EXPECT_EQ(serialize_network(load_network(folder.path() / "odd.name")), kExample);
  EXPECT_EQ(serialize_network(load_network(json, {.eager = true})), kExample);
  save_network(network, folder.path() / "a.safetensors");
  const SafetensorsFile tensors = SafetensorsFile::open(folder.path() / "a.safetensors");
  ASSERT_EQ(tensors.tensors().size(), 1u);
  EXPECT_EQ(tensors.tensors()[0].name, "layers.0");
  EXPECT_EQ(tensors.read_float32("layers.0")[1], -1);
  EXPECT_THROW(load_network(folder.path()), UnsupportedError);
  EXPECT_THROW(save_network(network, folder.path() / "a.bin"), UsageError);
  folder.write("arch.json", network_of(R"("type":"Dense","input_height":3,"output_height":2)"));
  EXPECT_FALSE(only_layer(load_network(folder.path() / "arch.json")).weights);
  EXPECT_TRUE(only_layer(load_network(folder.path() / "arch.json", {.seed = 1})).weights);
}

TEST(Checkpoint, AScaleIsUsedWhereTheWeightsAreFloats) {
  const Network network = deserialize_network(network_of(
      R"("dtype":"int8","native":false,"input_height":2,"output_height":1,"weights":"d77fPs3MTL4=","scale":0.01)"));
  const WeightStore& weights = *only_layer(network).weights;
  EXPECT_FLOAT_EQ(weights.active(DType::int8)[0], 0.44f);
  EXPECT_FLOAT_EQ(weights.active(DType::int8)[1], -0.2f);
  EXPECT_FLOAT_EQ(weights.master()[0], 0.437f);
}

TEST(Checkpoint, ALayerIsSavedByItself) {
  const Network network(layer_list(sequential(layer_list(with_dtype(dense(4, 4), DType::int4), residual()))), 3);
  const std::string text = serialize_layer(network.layers()[0]);
  const Layer layer = deserialize_layer(text);
  EXPECT_EQ(serialize_layer(layer), text);
  EXPECT_EQ(layer.sub_layers.at(0).weights->active(DType::int4),
            network.layers()[0].sub_layers[0].weights->active(DType::int4));
  EXPECT_THROW(deserialize_layer("[]"), FormatError);
  EXPECT_THROW(deserialize_layer(R"({"type":"Dense","input_height":2,"output_height":2,"weights":"AAAA"})"),
               FormatError);
}

}  // namespace
}  // namespace imago
