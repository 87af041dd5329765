#include <array>
#include <filesystem>
#include <limits>

#include "imago.h"
#include "imago/models.h"
#include "testing/loom_files.h"
#include "testing/temp_dir.h"

namespace imago::testing {
namespace {

using Json = nlohmann::json;

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

TEST(Inspect, AnUnknownOrLowerCaseTypeOfSafetensorsIsRefused) {
  const TempDir folder;
  for (const std::string type : {"f32", "Q9"}) {
    const std::string header = R"({"a":{"dtype":")" + type + R"(","shape":[1],"data_offsets":[0,4]}})";
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size());
    folder.write("a.safetensors", bytes + header + "1234");
    const ProcessResult result = imago_run({"inspect", folder.path() / "a.safetensors"});
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_NE(result.err.find("tensor 'a' has the dtype '" + type + "', which is not known"), std::string::npos)
        << result.err;
  }
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
      weighted.push_back(place + " " + std::string(layer->config.dtype.name()));
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

TEST(Inspect, PackedTypesAreWhatTheyStandFor) {
  const TempDir folder;
  const std::string path = folder.path() / "p.safetensors";
  SafetensorsWriter writer(
      path, {{"w", SafetensorsType::u8, {16}}, {"w.scales", SafetensorsType::f32, {4}}},
      {{"imago.packed", R"({"w":{"type":"int4","shape":[4,8],"granularity":"row"}})"}, {"note", "x"}});
  writer.write("w", std::array<std::byte, 16>{});
  writer.write("w.scales", std::array<std::byte, 16>{});
  writer.commit();
  const Json report = expect_json(imago_run({"inspect", path, "--json"}));
  EXPECT_EQ(report.at("parameters"), 32);
  EXPECT_EQ(report.at("bytes"), 32) << "codes and scales";
  EXPECT_EQ(report.at("tensors"), Json::parse(R"([{"name":"w","type":"int4","shape":[4,8],"bytes":32}])"));
  EXPECT_EQ(report.at("metadata"), Json::parse(R"({"note":"x"})"));
}

template <class T>
GgufArray array_of(std::initializer_list<T> values) {
  return GgufArray::of<T>(std::span<const T>(values.begin(), values.size()));
}

TEST(Inspect, GgufMetadataOfEveryTypeIsJson) {
  const TempDir folder;
  const std::string path = folder.path() / "m.gguf";
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<std::string> tokens(20, "tok\xFF");
  GgufWriter writer(
      path,
      {{"general.architecture", "llama"},
       {"u8", std::uint8_t{200}},
       {"i8", std::int8_t{-3}},
       {"u16", std::uint16_t{60000}},
       {"i16", std::int16_t{-300}},
       {"u32", std::uint32_t{4'000'000'000}},
       {"i32", std::int32_t{-5}},
       {"u64", ~std::uint64_t{0}},
       {"i64", std::numeric_limits<std::int64_t>::min()},
       {"f32", 0.1f},
       {"f64", 0.1},
       {"inf", infinity},
       {"minus", -infinity},
       {"nan", std::numeric_limits<double>::quiet_NaN()},
       {"yes", true},
       {"text", std::string("a\0\x1b\xFF\"b", 6)},
       {"empty", array_of<float>({})},
       {"bytes", array_of<std::uint8_t>({1, 255})},
       {"bools", array_of<bool>({true, false})},
       {"floats", array_of<float>({1.5f, infinity})},
       {"many", GgufArray::of<std::int32_t>(std::vector<std::int32_t>(17, -1))},
       {"tokens", GgufArray::of_strings(tokens)}},
      {{"w", gguf_tensor_type(BlockFormat::q4_0), {2, 32}}, {"b", gguf_tensor_type(DType::float32), {2}}});
  writer.write("w", std::array<std::byte, 36>{});
  writer.write("b", std::array<std::byte, 8>{});
  writer.commit();

  const Json report = expect_json(imago_run({"inspect", path, "--json"}));
  EXPECT_EQ(report.at("format"), "gguf");
  EXPECT_EQ(report.at("architecture"), "llama");
  EXPECT_EQ(report.at("parameters"), 66);
  EXPECT_EQ(report.at("bytes"), 44);
  EXPECT_EQ(report.at("file_bytes"), std::filesystem::file_size(path));
  EXPECT_EQ(report.at("notes"), Json::array());
  EXPECT_EQ(report.at("tensors")[0], Json::parse(R"({"name":"w","type":"Q4_0","shape":[2,32],"bytes":36})"));
  Json wanted = Json::parse(R"({"general.architecture":"llama","u8":200,"i8":-3,"u16":60000,"i16":-300,
    "u32":4000000000,"i32":-5,"u64":18446744073709551615,"i64":-9223372036854775808,"f32":0.1,"f64":0.1,"inf":"inf",
    "minus":"-inf","nan":"nan","yes":true,"text":"a\u0000\u001b\ufffd\"b","empty":[],"bytes":[1,255],
    "bools":[true,false],"floats":[1.5,"inf"],"many":{"type":"i32","count":17,"first":[-1,-1,-1,-1]}})");
  const std::string token = "tok\uFFFD";
  wanted["tokens"] = {{"type", "string"}, {"count", 20}, {"first", {token, token, token, token}}};
  EXPECT_EQ(report.at("metadata"), wanted);

  const ProcessResult text = imago_run({"inspect", path});
  EXPECT_EQ(text.exit_code, 0);
  for (const char* words : {"gguf", "llama", "Q4_0", "4000000000", "a\\x00\\x1b"}) {
    EXPECT_NE(text.out.find(words), std::string::npos) << words << " is missing from\n" << text.out;
  }
  EXPECT_EQ(text.out.find('\x1b'), std::string::npos) << "metadata must not steer the terminal";
}

TEST(Inspect, GgufWithoutAnArchitectureAndWithATail) {
  const TempDir folder;
  const std::string path = folder.path() / "m.gguf";
  GgufWriter(path, {{"general.architecture", std::uint8_t{1}}}, {}).commit();
  EXPECT_TRUE(expect_json(imago_run({"inspect", path, "--json"})).at("architecture").is_null());
  GgufWriter(path, {}, {}).commit();
  const std::string whole = read_text(path);
  folder.write("m.gguf", whole + std::string(64, 'x'));
  const Json report = expect_json(imago_run({"inspect", path, "--json"}));
  EXPECT_TRUE(report.at("architecture").is_null());
  ASSERT_EQ(report.at("notes").size(), 1u);
  const std::string note = report.at("notes")[0];
  EXPECT_NE(note.find("bytes after the last tensor belong to no tensor"), std::string::npos) << note;
  EXPECT_NE(imago_run({"inspect", path}).out.find(note), std::string::npos);
}

TEST(Inspect, AHuggingFaceFolderIsItsConfigAndItsShards) {
  const TempDir folder;
  folder.write("config.json", R"({"model_type": "llama", "hidden_size": 4, "rope": {"theta": 1e4}, "none": null})");
  save_safetensors(folder.path() / "a.safetensors",
                   std::vector<std::pair<std::string, Tensor<float>>>{{"x", Tensor<float>(Shape{2, 3})},
                                                                      {"y", Tensor<float>(Shape{2})}});
  save_safetensors(folder.path() / "b.safetensors",
                   std::vector<std::pair<std::string, Tensor<float>>>{{"z", Tensor<float>(Shape{4})}});
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) bytes += entry.file_size();
  Json report = expect_json(imago_run({"inspect", folder.path(), "--json"}));
  EXPECT_EQ(report.at("format"), "huggingface");
  EXPECT_EQ(report.at("architecture"), "llama");
  EXPECT_EQ(report.at("parameters"), 12);
  EXPECT_EQ(report.at("bytes"), 48);
  EXPECT_EQ(report.at("file_bytes"), bytes);
  EXPECT_EQ(report.at("metadata"),
            Json::parse(R"({"model_type":"llama","hidden_size":4,"rope":{"theta":10000.0},"none":null})"));
  EXPECT_EQ(report.at("tensors").size(), 3u);

  folder.write("config.json", R"({"rope": {"thetas": [1, 1e999]}})");
  expect_error(imago_run({"inspect", folder.path(), "--json"}), 1, "config.json: at byte 24: thetas is a number out");
  folder.write("config.json", "{}");

  folder.write("model.safetensors.index.json", R"({"metadata":{"total_size":5},"weight_map":{"z":"b.safetensors"}})");
  report = expect_json(imago_run({"inspect", folder.path(), "--json"}));
  EXPECT_EQ(report.at("parameters"), 4) << "the index decides";
  EXPECT_EQ(report.at("notes"), Json::parse(R"(["total_size of the index is 5, where the tensors have 16 bytes"])"));
}

TEST(Inspect, WhatIsWrongIsTold) {
  const TempDir folder;
  const auto wrong = [&](const std::string& text) {
    folder.write("wrong", text);
    return imago_run({"inspect", folder.path() / "wrong", "--json"});
  };
  expect_error(imago_run({"inspect"}), 2, "MODEL");
  expect_error(imago_run({"inspect", folder.path() / "absent"}), 1, "absent");
  expect_error(imago_run({"inspect", folder.path()}), 1, "the folder is empty");
  expect_error(wrong(""), 1, "the file is empty");
  expect_error(wrong("GGUF....................."), 1, "GGUF version 774778414 is not known");
  expect_error(wrong(std::string("GGUF\3\0\0\0\0\0", 10)), 1, "wrong: at byte ");
  expect_error(imago_run({"inspect", folder.path()}), 1, "no config.json and no *.safetensors");
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
  expect_error(wrong(bad), 1, "weights is not base64: wrong at character 1 of 12");
  text.insert(at, "AAAA");
  expect_error(wrong(text), 1, "the weights of layers.0 (Dense) do not fit: 11 bytes for 15 weights in int4");
}

}  // namespace
}  // namespace imago::testing
