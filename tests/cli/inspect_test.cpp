#include <array>

#include "imago.h"
#include "imago/inspect.h"
#include "testing/loom_files.h"
#include "testing/temp_dir.h"

namespace imago::testing {
namespace {

using Json = nlohmann::json;

std::string loom(const std::string& name) { return (loom_folder() / name).string(); }

TEST(Inspect, ACheckpointIsTheWeightsOfItsLayers) {
  const Json report = expect_json(imago_run({"inspect", loom("dense_int4.json"), "--json"}));
  EXPECT_EQ(report.at("format"), "checkpoint");
  EXPECT_TRUE(report.at("architecture").is_null());
  EXPECT_EQ(report.at("parameters"), 15);
  EXPECT_EQ(report.at("bytes"), 8);
  EXPECT_DOUBLE_EQ(report.at("bits_per_weight").get<double>(), 64.0 / 15);
  EXPECT_EQ(report.at("tensors"), Json::parse(R"([{"name":"layers.0","type":"int4","shape":[3,5],"bytes":8}])"));
  EXPECT_EQ(report.at("metadata").at("layers_per_cell"), 1);
  EXPECT_EQ(report.at("metadata").at("layer_types"), Json::parse(R"({"Dense":1})"));
}

TEST(Inspect, AgreesWithTheLoaderOnEveryFile) {
  std::vector<std::filesystem::path> files = loom_checkpoints(loom_folder());
  for (const auto& entry : std::filesystem::directory_iterator(loom_folder())) {
    if (entry.path().extension() == ".entity") files.push_back(entry.path());
  }
  for (const auto& path : files) {
    const ModelSummary summary = inspect_model(path);
    const Network network = load_network(path);
    std::vector<std::string> weighted, found;
    std::uint64_t count = 0;
    for (const auto& [place, layer] : named_layers(network)) {
      if (!layer->weights) continue;
      weighted.push_back(place + " " + std::string(name(layer->config.dtype)));
      count += layer->weights->count();
    }
    for (const TensorSummary& tensor : summary.tensors) found.push_back(tensor.name + " " + tensor.type);
    EXPECT_EQ(found, weighted) << path;
    EXPECT_EQ(summary.parameters, summary.form == FileForm::architecture ? summary.parameters : count) << path;
  }
}

TEST(Inspect, TellsTheFormByTheContent) {
  const TempDir folder;
  const auto format_of = [&](const std::string& path) {
    return expect_json(imago_run({"inspect", path, "--json"})).at("format").get<std::string>();
  };
  EXPECT_EQ(format_of(loom("dense_ternary.entity")), "entity");
  EXPECT_EQ(format_of(loom("grid_mixed.safetensors")), "safetensors");
  folder.write("odd.gguf", R"({"depth":1,"rows":1,"cols":1,"layers_per_cell":2,"layers":[
    {"z":0,"y":0,"x":0,"l":0,"type":"Dense","input_height":4,"output_height":3},
    {"z":0,"y":0,"x":0,"l":1,"type":"Sequential","sequential_layers":[{"type":"RMSNorm","input_height":3}]}]})");
  const Json architecture = expect_json(imago_run({"inspect", folder.path() / "odd.gguf", "--json"}));
  EXPECT_EQ(architecture.at("format"), "architecture");
  EXPECT_EQ(architecture.at("parameters"), 15);
  EXPECT_EQ(architecture.at("bytes"), 0);
  EXPECT_EQ(architecture.at("tensors"), Json::array());
}

TEST(Inspect, ASafetensorsFileIsItsTensorsAndMetadata) {
  const TempDir folder;
  const std::string path = folder.path() / "t.safetensors";
  SafetensorsWriter writer(path, {{"b\x1b[31m", SafetensorsType::u8, {2, 3}}, {"a", SafetensorsType::f16, {4}}},
                           {{"note", "two\nlines"}});
  writer.write("a", std::array<std::byte, 8>{});
  writer.write("b\x1b[31m", std::array<std::byte, 6>{});
  writer.commit();
  const Json report = expect_json(imago_run({"inspect", path, "--json"}));
  EXPECT_EQ(report.at("parameters"), 10);
  EXPECT_EQ(report.at("bytes"), 14);
  EXPECT_EQ(report.at("metadata"), Json::parse(R"({"note":"two\nlines"})"));
  EXPECT_EQ(report.at("tensors")[0], Json::parse(R"({"name":"a","type":"F16","shape":[4],"bytes":8})"));
  EXPECT_EQ(report.at("tensors")[1].at("shape"), Json::parse("[2,3]"));

  const ProcessResult text = imago_run({"inspect", path, "--tensors"});
  EXPECT_EQ(text.exit_code, 0);
  for (const char* words : {"safetensors", "11.20", "two\\x0alines", "By type", "F16", "b\\x1b[31m", "2 × 3", "8 B"}) {
    EXPECT_NE(text.out.find(words), std::string::npos) << words << " is missing from\n" << text.out;
  }
  EXPECT_EQ(text.out.find('\x1b'), std::string::npos) << "names must not steer the terminal";
  EXPECT_EQ(imago_run({"inspect", path}).out.find("2 × 3"), std::string::npos);
}

TEST(Inspect, WhatIsWrongIsTold) {
  const TempDir folder;
  const auto wrong = [&](const std::string& text) {
    folder.write("wrong", text);
    return imago_run({"inspect", folder.path() / "wrong", "--json"});
  };
  expect_error(imago_run({"inspect"}), 2, "MODEL");
  expect_error(imago_run({"inspect", folder.path() / "absent"}), 1, "absent");
  expect_error(imago_run({"inspect", folder.path()}), 1, "no config.json");
  expect_error(wrong(""), 1, "the file is empty");
  expect_error(wrong("GGUF....................."), 1, "cannot look into gguf models yet");
  for (const char* name : {"dense_int4.json", "dense_int4.entity", "grid_mixed.safetensors"}) {
    const std::string whole = read_text(loom(name));
    for (const std::size_t size : {whole.size() - 2, whole.size() / 2, std::size_t{30}}) {
      expect_error(wrong(whole.substr(0, size)), 1, "wrong: at byte ");
    }
  }
  std::string text = read_text(loom("dense_int4.json"));
  const std::size_t at = text.find("\"weights\": \"") + 12;
  std::string bad = text;
  bad[at + 1] = '!';
  expect_error(wrong(bad), 1, "no base64");
  text.insert(at, "AAAA");
  expect_error(wrong(text), 1, "the weights of layers.0 (Dense) do not fit: 11 bytes for 15 weights in int4");
}

}  // namespace
}  // namespace imago::testing
