#include "checkpoint/network_tensors.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "files/tensor_file.h"
#include "imago/error.h"
#include "testing/every_layer.h"
#include "testing/temp_dir.h"

namespace imago::checkpoint {
namespace {

const char* const kForms[] = {"net.safetensors", "net.gguf"};

class NetworkTensors : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }
  /// Expects that a network comes back byte for byte.
  void expect_same(const Network& network, const std::string& what) const {
    for (const char* form : kForms) {
      save_network(network, file(form));
      EXPECT_TRUE(imago::holds_network(file(form)));
      EXPECT_EQ(serialize_network(load_network(file(form))), serialize_network(network)) << what << form;
    }
  }
  std::string problem_of(const std::string& name) const {
    try {
      load_network(file(name));
    } catch (const FormatError& error) {
      return error.what();
    }
    return "none";
  }
  /// A file with that entry and those float32 tensors.
  void write(const std::string& entry, const std::vector<std::pair<std::string, Shape>>& tensors) const {
    std::vector<SafetensorsEntry> entries;
    for (const auto& [name, shape] : tensors) entries.push_back({name, SafetensorsType::f32, shape});
    SafetensorsWriter writer(file("net.safetensors"), entries, {{"imago.network", entry}});
    for (const auto& [name, shape] : tensors) writer.write(name, std::vector<float>(shape.elements(), 0.5f));
    writer.commit();
  }
  testing::TempDir folder_;
};

Network nested(DType dtype) {
  const auto typed = [&](Layer layer) { return with_dtype(std::move(layer), dtype); };
  std::vector<Layer> inner = layer_list(typed(dense(6, 6)), residual(), typed(rms_norm(6)));
  std::vector<Layer> branches = layer_list(typed(dense(6, 3)), sequential(layer_list(typed(dense(6, 3)))));
  return Network(layer_list(typed(dense(4, 6)), sequential(std::move(inner)), parallel("concat", std::move(branches))),
                 3);
}

TEST_F(NetworkTensors, EveryTypeComesBackByteForByte) {
  for (const DTypeInfo& dtype : kDTypes) expect_same(nested(dtype.id), std::string(dtype.name) + " ");
}

TEST_F(NetworkTensors, EveryLayerComesBackByteForByte) {
  for (int type = 0; type < kLayerTypes; ++type) {
    expect_same(Network(layer_list(testing::layer_case(static_cast<LayerType>(type)).layer), 3),
                std::string(name(static_cast<LayerType>(type))) + " ");
  }
}

TEST_F(NetworkTensors, ScalesPerRowAndGroupComeBack) {
  Network network(layer_list(with_dtype(dense(64, 6), DType::int4), with_dtype(dense(6, 3), DType::uint8)), 3);
  network.layers()[0].config.granularity = Granularity::group;
  network.layers()[0].config.group = 32;
  network.layers()[1].config.granularity = Granularity::row;
  expect_same(network, "");
}

TEST_F(NetworkTensors, ZeroPointsComeBack) {
  for (const DType dtype : {DType::uint64, DType::uint16, DType::uint8, DType::uint2}) {
    Network network(
        layer_list(with_dtype(dense(64, 6), dtype), with_dtype(dense(64, 6), dtype), with_dtype(dense(64, 6), dtype)),
        3);
    network.layers()[1].config.granularity = Granularity::row;
    network.layers()[2].config.granularity = Granularity::group;
    network.layers()[2].config.group = 32;
    for (const Layer& layer : network.layers()) {
      EXPECT_FALSE(layer.weights->morph(layer.config.scheme())->zero_points().empty());
    }
    expect_same(network, std::string(name(dtype)) + " ");
  }
  save_network(Network(layer_list(with_dtype(dense(2, 2), DType::uint8)), 1), file("net.safetensors"));
  const files::TensorFile opened = files::TensorFile::open(file("net.safetensors"));
  EXPECT_EQ(opened.tensors().size(), 1u) << "scales and zero points are shown with their tensor";
  EXPECT_EQ(opened.require("layers.0").zero_points.size(), 1u);
}

TEST_F(NetworkTensors, ScalesThatAreKeptButNotUsedComeBack) {
  Network network(layer_list(dense(2, 2), dense(2, 2), with_dtype(dense(2, 2), DType::int8)), 1);
  network.layers()[0].weights->set_scale(DType::float32, 0.25f);
  network.layers()[1].weights->set_scale(DType::float32, 0);
  network.layers()[2].weights->set_scale(DType::int8, 0);
  expect_same(network, "");
}

TEST_F(NetworkTensors, TensorsHaveThePathsOfTheirLayers) {
  save_network(nested(DType::int4), file("net.gguf"));
  const files::TensorFile opened = files::TensorFile::open(file("net.gguf"));
  std::vector<std::string> names;
  for (const files::StoredTensor& tensor : opened.tensors()) names.push_back(tensor.name + " " + tensor.type);
  EXPECT_EQ(names, (std::vector<std::string>{"layers.0 int4", "layers.1.sequential_layers.0 int4",
                                             "layers.1.sequential_layers.2 int4", "layers.2.parallel_branches.0 int4",
                                             "layers.2.parallel_branches.1.sequential_layers.0 int4"}));
  EXPECT_EQ(GgufFile::open(file("net.gguf")).find_tensor("layers.0")->bytes.size(), 12u) << "two codes in a byte";
}

TEST_F(NetworkTensors, PathsMayBeLongerThanNamesOfGguf) {
  Layer layer = with_dtype(dense(2, 2), DType::int8);
  for (int depth = 0; depth < 12; ++depth) layer = sequential(layer_list(std::move(layer)));
  expect_same(Network(layer_list(std::move(layer), dense(2, 2)), 5), "");
}

TEST_F(NetworkTensors, WeightsMayBeMissing) {
  const Network network = deserialize_network(
      R"({"id":"a","depth":1,"rows":1,"cols":1,"layers_per_cell":1,"layers":[{"type":"Dense","input_height":2,"output_height":2}]})");
  expect_same(network, "");
}

TEST_F(NetworkTensors, InspectingShowsLayersAndTheirTypes) {
  for (const char* form : kForms) {
    save_network(nested(DType::int8), file(form));
    const ModelSummary summary = inspect_model(file(form));
    EXPECT_EQ(summary.parameters, 24u + 36 + 6 + 18 + 18);
    EXPECT_EQ(summary.bytes, summary.parameters + 5 * sizeof(float));
    EXPECT_EQ(summary.tensors.at(1).name, "layers.1.sequential_layers.0");
    EXPECT_EQ(summary.tensors.at(1).type, "int8");
    bool has_id = false;
    for (const auto& [key, value] : summary.metadata) {
      EXPECT_FALSE(key.starts_with("imago.")) << key;
      has_id = has_id || key == "layer_types";
    }
    EXPECT_TRUE(has_id);
  }
}

constexpr const char* kDense =
    R"({"id":"a","depth":1,"rows":1,"cols":1,"layers_per_cell":1,"layers":[{"type":"Dense","input_height":2,"output_height":3}]})";

TEST_F(NetworkTensors, WhatDoesNotFitIsAnErrorWithItsPlace) {
  write(kDense, {{"layers.0", {3, 2}}});
  EXPECT_EQ(problem_of("net.safetensors"), "none");
  write(kDense, {{"layers.0", {3, 3}}});
  EXPECT_NE(problem_of("net.safetensors").find("'layers.0' does not fit its layer"), std::string::npos);
  write(kDense, {{"layers.0", {3, 2}}, {"layers.1", {3, 2}}});
  EXPECT_NE(problem_of("net.safetensors").find("'layers.1' belongs to no layer"), std::string::npos);
  write("{", {{"layers.0", {3, 2}}});
  EXPECT_NE(problem_of("net.safetensors").find("imago.network"), std::string::npos);
  std::string typed = kDense;
  typed.insert(typed.find("\"input_height\""), "\"dtype\":\"INT8\",");
  write(typed, {{"layers.0", {3, 2}}});
  EXPECT_NE(problem_of("net.safetensors").find("it is F32, but the layer is int8"), std::string::npos)
      << problem_of("net.safetensors");
  std::string huge = kDense;
  huge.replace(huge.find("2,"), 1, "2147483647");
  write(huge, {{"layers.0", {3, 2}}});
  EXPECT_NE(problem_of("net.safetensors").find("does not fit"), std::string::npos);
  GgufWriter(file("net.gguf"), {{"imago.network", 7u}}, {}).commit();
  EXPECT_THROW(load_network(file("net.gguf")), UnsupportedError) << "a number is not a network";
  GgufWriter(file("net.gguf"), {{"imago.packed", 7u}}, {}).commit();
  EXPECT_THROW(load_network(file("net.gguf")), FormatError);
}

TEST_F(NetworkTensors, CodesWithoutScalesAreRefused) {
  std::string typed = kDense;
  typed.insert(typed.find("\"input_height\""), "\"dtype\":\"INT8\",");
  GgufWriter writer(file("net.gguf"), {{"imago.network", typed}}, {{"layers.0", gguf_tensor_types()[0], Shape{3, 2}}});
  writer.write("layers.0", std::vector<float>(6));
  writer.commit();
  EXPECT_NE(problem_of("net.gguf").find("it is F32, but the layer is int8"), std::string::npos);
  SafetensorsWriter bare(file("net.safetensors"), {{"layers.0", SafetensorsType::i8, {3, 2}}},
                         {{"imago.network", typed}});
  bare.write("layers.0", std::vector<std::byte>(6));
  bare.commit();
  EXPECT_NE(problem_of("net.safetensors").find("its scales are missing"), std::string::npos);
}

TEST_F(NetworkTensors, FlippedBytesGiveErrorsOrNetworks) {
  std::size_t refused = 0, loaded = 0;
  for (const char* form : kForms) {
    save_network(Network(layer_list(with_dtype(dense(3, 2), DType::int4), sequential(layer_list(dense(2, 2)))), 1),
                 file(form));
    const std::string good(MappedFile::open(file(form)).text());
    for (std::size_t at = 0; at < good.size(); ++at) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
      folder_.write(std::string("bad") + form, bad);
      try {
        static_cast<void>(load_network(file(std::string("bad") + form)));
        ++loaded;
      } catch (const Error&) {  // anything else is a bug
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 500u);
  EXPECT_GT(loaded, 50u);
}

}  // namespace
}  // namespace imago::checkpoint
