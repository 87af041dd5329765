#include "files/hugging_face.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <set>

#include "files/packed_safetensors.h"
#include "files/tensor_file.h"
#include "imago/error.h"
#include "testing/loom_files.h"
#include "testing/problems.h"
#include "testing/temp_dir.h"
#include "testing/torch_models.h"

namespace imago::files {
namespace {

namespace fs = std::filesystem;
using testing::expect_problem;
using testing::problem_of;
using testing::read_text;
using testing::TempDir;

std::set<std::string> files_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

/// A folder that is a model, file by file, so that each can be wrong.
class Folder : public ::testing::Test {
 protected:
  std::string path(const std::string& name = "") const { return (folder_.path() / name).string(); }
  void write(const std::string& name, std::string_view text) const { folder_.write(name, text); }

  /// A shard of float32 tensors with one element each: their place in the list.
  void write_shard(const std::string& name, const std::vector<std::string>& tensors) const {
    std::vector<std::pair<std::string, Tensor<float>>> values;
    for (const std::string& tensor : tensors) {
      values.emplace_back(tensor, Tensor<float>(Shape{1}, {static_cast<float>(values.size())}));
    }
    save_safetensors(path(name), values);
  }

  /// Two shards with three tensors, and the index.
  void write_model() const {
    write("config.json", R"({"model_type":"llama","n":[1, 2]})");
    write_shard("s1.safetensors", {"a", "b"});
    write_shard("s2.safetensors", {"c"});
    write_index(R"({"a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors"})");
  }
  void write_index(const std::string& map, const std::string& total = "12") const {
    write(std::string(kIndexName), R"({"metadata":{"total_size":)" + total + R"(},"weight_map":)" + map + "}");
  }

  std::string problem() const {
    return problem_of([&] { HuggingFaceFolder::open(path()); });
  }
  void expect(std::string_view text) const { EXPECT_NE(problem().find(text), std::string::npos) << problem(); }

  TempDir folder_;
};

// ---- reading

TEST_F(Folder, IsItsConfigItsShardsAndWhatLiesBeside) {
  write_model();
  write("tokenizer.json", R"({"version":"1.0"})");
  write("generation_config.json", R"({"temperature":0.5})");
  write("chat_template.jinja", "{{ x }}");
  write("extra.safetensors", "the index does not name it");
  const HuggingFaceFolder folder = HuggingFaceFolder::open(path());
  EXPECT_EQ(folder.config().root().find("model_type")->string("x"), "llama");
  EXPECT_EQ(folder.config().text(), R"({"model_type":"llama","n":[1, 2]})");
  ASSERT_EQ(folder.shards().size(), 2u);
  EXPECT_EQ(folder.tokenizer()->root().find("version")->string("x"), "1.0");
  EXPECT_EQ(folder.generation_config()->root().find("temperature")->number("x"), 0.5);
  EXPECT_FALSE(folder.tokenizer_config().has_value());
  EXPECT_EQ(folder.chat_template(), "{{ x }}");
  EXPECT_TRUE(folder.notes().empty());

  const TensorFile file = TensorFile::open(path());
  EXPECT_EQ(file.form(), FileForm::huggingface);
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.tensors()[2].name, "c");
  EXPECT_EQ(file.require("b").file, path("s1.safetensors"));
  float b = 0;
  decode_tensor(file.require("b"), 0, {&b, 1});
  EXPECT_EQ(b, 1.0f);
  ASSERT_NE(file.folder(), nullptr);
  EXPECT_EQ(file.folder()->path(), path());
}

TEST_F(Folder, WithoutAnIndexAllSafetensorsBelongToIt) {
  write_model();
  fs::remove(path(std::string(kIndexName)));
  EXPECT_EQ(TensorFile::open(path()).tensors().size(), 3u);
  write_shard("s3.safetensors", {"b"});
  expect("tensor 'b' is in two shards: s1.safetensors and s3.safetensors");
}

TEST_F(Folder, OdditiesAreNotes) {
  write_model();
  write_index(R"({"a":"s1.safetensors","c":"s2.safetensors"})", "13");
  const HuggingFaceFolder folder = HuggingFaceFolder::open(path());
  ASSERT_EQ(folder.notes().size(), 2u);
  EXPECT_EQ(folder.notes()[0], "1 tensors of the shards are not in the index");
  EXPECT_EQ(folder.notes()[1], "total_size of the index is 13, where the tensors have 12 bytes");
  for (const char* total : {"-1", "1e99", "0.5"}) {
    write_index(R"({"a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors"})", total);
    const HuggingFaceFolder odd = HuggingFaceFolder::open(path());
    ASSERT_EQ(odd.notes().size(), 1u) << total;
    EXPECT_EQ(odd.notes()[0], "total_size of the index is not a size; the tensors have 12 bytes");
  }
  write_index(R"({"a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors"})", "12.0");
  EXPECT_TRUE(HuggingFaceFolder::open(path()).notes().empty());
}

TEST_F(Folder, NamesOfShardsStayInTheFolder) {
  write_model();
  write("outside.safetensors", "x");
  const std::pair<const char*, const char*> wrong[] = {
      {"../x.safetensors", "the shard \"../x.safetensors\" of tensor 'a' leads to another folder"},
      {"sub/x.safetensors", "leads to another folder"},
      {"/etc/x.safetensors", "is an absolute path: shards lie in the folder itself"},
      {"..\\\\x.safetensors", "holds a backslash"},
      {"C:x.safetensors", "names a drive"},
      {"C:\\\\x.safetensors", "names a drive"},
      {"https://h/x.safetensors", "is an address"},
      {"", "is empty"},
      {"..", "does not end in .safetensors"},
      {"model.bin", "does not end in .safetensors"},
      {"a\\u0000.safetensors", "holds a control character"},
      {"a\\n.safetensors", "holds a control character"},
  };
  for (const auto& [name, text] : wrong) {
    write_index(std::string(R"({"a":")") + name + R"("})");
    expect(text);
    expect("model.safetensors.index.json: at byte ");
  }
  write_index(R"({"a":")" + std::string(300, 'x') + R"(.safetensors"})");
  expect("has 312 bytes: names of files have at most 255");
}

TEST_F(Folder, TheIndexMustAgreeWithItsShards) {
  write_model();
  write_index(R"({"a":"s1.safetensors","c":"s9.safetensors"})");
  expect("s9.safetensors: this shard is missing: model.safetensors.index.json names it");
  EXPECT_THROW(HuggingFaceFolder::open(path()), IoError);
  write_index(R"({"a":"s1.safetensors","c":"s1.safetensors"})");
  expect("tensor 'c' is not in s1.safetensors, where the index has it (no shard has it)");
  write_index(R"({"a":"s2.safetensors","b":"s1.safetensors"})");
  expect("tensor 'a' is not in s2.safetensors, where the index has it (it is in s1.safetensors)");
  write_shard("s2.safetensors", {"a", "c"});
  write_index(R"({"a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors"})");
  expect("tensor 'a' is in two shards: s1.safetensors and s2.safetensors");
}

TEST_F(Folder, TheIndexMustBeOne) {
  write_model();
  const auto index = [&](const std::string& text) { write(std::string(kIndexName), text); };
  index("[]");
  expect("an index must be an object");
  index("{}");
  expect("the index has no weight_map");
  index(R"({"weight_map":[]})");
  expect("weight_map");
  index(R"({"weight_map":{}})");
  expect("the weight_map is empty");
  index(R"({"weight_map":{"a":1}})");
  expect("the shard of tensor 'a'");
  index(R"({"weight_map":{"a":"s1.safetensors","a":"s2.safetensors"}})");
  expect("twice");
  index("");
  expect("the file is empty");
  index("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n");
  expect("this is a git-lfs pointer");
  index(std::string(100, '[') + std::string(100, ']'));
  expect("deep");
}

TEST_F(Folder, FilesThatWereNeverDownloaded) {
  write_model();
  write("s2.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n");
  expect("s2.safetensors: at byte 0: this is a git-lfs pointer, not the file: run `git lfs pull`");
  write("s2.safetensors", "<!DOCTYPE html><html><body>404</body></html>");
  expect("s2.safetensors: at byte 0: this is an HTML page, not a model: the download went wrong");
  write("s2.safetensors", "PK\x03\x04 and so on, a ZIP archive");
  expect("this is a ZIP archive");
  write("s2.safetensors", "");
  expect("at least 8 bytes");
  const std::string whole = read_text(path("s1.safetensors"));
  write("s2.safetensors", whole.substr(0, whole.size() - 3));
  expect("s2.safetensors");
  write_model();
  write("config.json", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n");
  expect("config.json: at byte 0: this is a git-lfs pointer");
  write("config.json", "<html>");
  expect("config.json: at byte 0: this is an HTML page");
  write("config.json", "[1]");
  expect("config.json must be an object");
  write("config.json", R"({"a":1,"a":2})");
  expect("config.json: at byte ");
  write("config.json", "{" + std::string(kMaxConfigBytes, ' ') + "}");
  expect("config.json: at byte 0: the file has 16777218 bytes: at most 16777216 are allowed");
}

TEST_F(Folder, FoldersThatAreNoModels) {
  const auto expect_both = [&](std::string_view text) {
    expect(text);
    expect_problem([&] { TensorFile::open(path()); }, text);
  };
  expect_both("the folder is empty: a model has config.json and *.safetensors");
  write("README.md", "x");
  expect_both("the folder has no config.json and no *.safetensors, so it is not a model");
  write_shard("s1.safetensors", {"a"});
  expect_both("the folder has no config.json, so it is not a model");
  fs::remove(path("s1.safetensors"));
  write("config.json", "{}");
  expect_both("the folder has a config.json, but no *.safetensors: the weights are missing");
  write("pytorch_model.bin", "PK");
  expect_both("the weights are a PyTorch file only, pytorch_model.bin: convert it to safetensors first");
  write("m.gguf", "GGUF");
  expect_both("the folder holds a GGUF file: open it by its own name, '" + path("m.gguf") + "'");
  expect_problem([&] { HuggingFaceFolder::open(path("none")); }, "cannot list the folder");
}

TEST_F(Folder, ShardsAreFiles) {
  write_model();
  fs::remove(path("s2.safetensors"));
  fs::create_directory(path("s2.safetensors"));
  expect("s2.safetensors: is a folder, not a file");
  fs::remove(path("s2.safetensors"));
  fs::create_symlink(path("s2.safetensors"), path("s2.safetensors"));
  expect("s2.safetensors");
  fs::remove(path("s2.safetensors"));
  fs::rename(path("s1.safetensors"), path("blob"));
  fs::create_symlink("blob", path("s1.safetensors"));
  write_index(R"({"a":"s1.safetensors","b":"s1.safetensors"})", "8");
  EXPECT_EQ(problem(), "no error") << "the cache of Hugging Face consists of links";
}

TEST(HostileIndex, FlippedBytesGiveErrorsOrNamesInTheFolder) {
  const std::string good =
      R"({"metadata":{"total_size":12},"weight_map":{"a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors"}})";
  std::mt19937 generator(1);
  std::size_t read = 0;
  for (int i = 0; i < 10'000; ++i) {
    std::string bad = good;
    bad[generator() % bad.size()] = static_cast<char>(generator() % 256);
    try {
      const HuggingFaceIndex index = read_index(JsonFile::parse(bad, "index"));
      for (const std::string& name : index.shards) ASSERT_EQ(fs::path(name).filename(), name);
      ASSERT_LE(index.shards.size(), index.entries.size());
      ++read;
    } catch (const FormatError&) {
    }
  }
  EXPECT_GT(read, 100u);
}

// ---- writing

using Entries = std::vector<SafetensorsEntry>;

std::vector<std::byte> bytes_for(const SafetensorsEntry& entry) {
  std::vector<std::byte> bytes(entry.shape.elements() * static_cast<std::size_t>(bits(entry.type)) / 8);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i + entry.name.size());
  return bytes;
}

void write_all(HuggingFaceWriter& writer) {
  const Entries entries(writer.entries().begin(), writer.entries().end());
  for (const SafetensorsEntry& entry : entries) {
    const std::vector<std::byte> bytes = bytes_for(entry);
    writer.write(entry.name, std::span(bytes).first(bytes.size() / 2));
    writer.write(entry.name, std::span(bytes).subspan(bytes.size() / 2));
  }
}

const Entries kEntries = {{"d", SafetensorsType::u8, {40}},  {"a", SafetensorsType::u8, {30}},
                          {"c", SafetensorsType::u8, {0}},   {"b", SafetensorsType::u8, {30}},
                          {"e", SafetensorsType::u8, {200}}, {"f", SafetensorsType::u8, {5}}};

void expect_round_trip(const std::string& path) {
  const TensorFile file = TensorFile::open(path);
  EXPECT_EQ(file.tensors().size(), kEntries.size());
  EXPECT_TRUE(file.folder()->notes().empty());
  for (const SafetensorsEntry& entry : kEntries) {
    const StoredTensor& tensor = file.require(entry.name);
    EXPECT_EQ(tensor.shape, entry.shape);
    EXPECT_TRUE(std::ranges::equal(tensor.bytes, bytes_for(entry))) << entry.name;
  }
}

TEST_F(Folder, IsWrittenInShardsThatAreReadBack) {
  const std::string target = path("new/model");
  HuggingFaceWriter writer(target, kEntries, {{"config.json", "{}"}, {"tokenizer.json", "{}"}}, {{"x", "y"}}, 100);
  const std::set<std::string> hidden = files_in(target);
  for (const std::string& name : hidden) EXPECT_TRUE(name.starts_with(".imago-")) << name;
  write_all(writer);
  writer.commit();
  // a + b + d fill 100 bytes; e is larger than a shard; f comes after it.
  EXPECT_EQ(files_in(target),
            (std::set<std::string>{"config.json", "tokenizer.json", "model.safetensors.index.json",
                                   "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                   "model-00003-of-00003.safetensors"}));
  expect_round_trip(target);
  const HuggingFaceFolder folder = HuggingFaceFolder::open(target);
  ASSERT_EQ(folder.shards().size(), 3u);
  EXPECT_EQ(folder.shards()[0].tensors().size(), 4u);
  EXPECT_EQ(folder.shards()[1].tensors().size(), 1u);
  for (const SafetensorsFile& shard : folder.shards()) {
    const std::map<std::string, std::string> metadata(shard.metadata().begin(), shard.metadata().end());
    EXPECT_EQ(metadata, (std::map<std::string, std::string>{{"x", "y"}, {"format", "pt"}}));
  }
  const auto index = nlohmann::json::parse(read_text(target + "/model.safetensors.index.json"));
  EXPECT_EQ(index.at("metadata").at("total_size"), 305);
  EXPECT_EQ(index.at("weight_map").at("e"), "model-00002-of-00003.safetensors");
  EXPECT_EQ(index.at("weight_map").size(), 6u);
}

TEST_F(Folder, OldWeightsGoWhenNewOnesCome) {
  for (const std::uint64_t shard_bytes : {100u, 1000u, 40u, 1000u}) {
    HuggingFaceWriter writer(path(), kEntries, {{"config.json", "{}"}}, {}, shard_bytes);
    write_all(writer);
    writer.commit();
    expect_round_trip(path());
  }
  EXPECT_EQ(files_in(path()), (std::set<std::string>{"config.json", "model.safetensors"}));
  write("model-1.safetensors.txt", "mine");
  HuggingFaceWriter writer(path(), {}, {{"config.json", R"({"n":1})"}}, {{"format", "tf"}}, 100);
  writer.commit();
  EXPECT_TRUE(fs::exists(path("model-1.safetensors.txt")));
  const HuggingFaceFolder folder = HuggingFaceFolder::open(path());
  EXPECT_TRUE(folder.shards()[0].tensors().empty());
  EXPECT_EQ(folder.shards()[0].metadata()[0].second, "tf");
  EXPECT_EQ(folder.config().text(), R"({"n":1})");
}

TEST_F(Folder, WithoutACommitNothingIsLeft) {
  write("here/config.json", "old");
  {
    HuggingFaceWriter fresh(path("gone"), kEntries, {}, {}, 100);
    HuggingFaceWriter old(path("here"), kEntries, {{"config.json", "new"}}, {}, 100);
    write_all(fresh);
    old.write("a", bytes_for(kEntries[1]));
    expect_problem([&] { old.commit(); }, "tensor 'b' is not completely written");
    expect_problem([&] { old.write("d", bytes_for(kEntries[0])); }, "tensor 'd' comes where 'b' is due");
    expect_problem([&] { old.write("b", std::vector<std::byte>(31)); }, "tensor 'b' takes 30 bytes");
    expect_problem([&] { fresh.write("a", bytes_for(kEntries[1])); },
                   "all tensors are written already, 'a' is one too many");
  }
  EXPECT_FALSE(fs::exists(path("gone")));
  EXPECT_EQ(files_in(path("here")), std::set<std::string>{"config.json"});
  EXPECT_EQ(read_text(path("here/config.json")), "old");
}

TEST_F(Folder, WhatCannotBeWrittenIsToldAtOnce) {
  const auto make = [&](Entries entries, std::vector<files::SideFile> files, std::uint64_t bytes = 9) {
    HuggingFaceWriter writer(path("m"), std::move(entries), std::move(files), {}, bytes);
  };
  expect_problem([&] { make({}, {{"../config.json", ""}}); }, "'../config.json' is not a valid file name");
  expect_problem([&] { make({}, {{"", ""}}); }, "is not a valid file name");
  expect_problem([&] { make({}, {{"model.safetensors", ""}}); }, "is for the weights of the folder");
  expect_problem([&] { make({}, {{"a.json", ""}, {"a.json", ""}}); }, "two files are named 'a.json'");
  expect_problem([&] { make({}, {}, 0); }, "shards of 0 bytes");
  expect_problem([&] { make({kEntries[0], kEntries[0]}, {}); }, "two tensors are named 'd'");
  write("file", "x");
  expect_problem([&] { HuggingFaceWriter(path("file"), {}, {}, {}, 9); }, "it is not a folder");
  EXPECT_FALSE(fs::exists(path("m")));
}

TEST_F(Folder, LinksAreNotWrittenThrough) {
  std::filesystem::create_directories(path("cache"));
  std::ofstream(path("blob")) << "shared";
  std::filesystem::create_symlink(path("blob"), path("cache/config.json"));
  expect_problem([&] { HuggingFaceWriter(path("cache"), {}, {}, {}, 9); }, "is a link");
  std::ifstream blob(path("blob"));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(blob), {}), "shared");
}

TEST_F(Folder, ScalesStayBesideTheirCodes) {
  // "w-x" sorts between "w" and "w.scales", and shards of 20 bytes hold one of them only.
  const std::vector<PackedTensor> packed = {{"v", BlockFormat::q4_0, {32}},
                                            {"w", DType::int4, {4, 8}, Granularity::row},
                                            {"y", DType::int4, {4}, Granularity::tensor}};
  const Entries entries = {{"v", SafetensorsType::u8, {18}},   {"w", SafetensorsType::u8, {16}},
                           {"w-x", SafetensorsType::u8, {20}}, {"w.scales", SafetensorsType::f32, {4}},
                           {"y", SafetensorsType::u8, {2}},    {"y.scales", SafetensorsType::f32, {1}}};
  HuggingFaceWriter writer(path(), entries, {{"config.json", "{}"}}, {{"imago.packed", packed_text(packed)}}, 20);
  const Entries due(writer.entries().begin(), writer.entries().end());
  const std::array<float, 4> scales = {1, 2, 3, 4};
  for (const SafetensorsEntry& entry : due) {
    const bool is_scales = entry.type == SafetensorsType::f32;
    const auto scale_bytes = std::as_bytes(std::span(scales).first(is_scales ? entry.shape.elements() : 0));
    const std::vector<std::byte> codes = bytes_for(entry);
    writer.write(entry.name, is_scales ? scale_bytes : std::span<const std::byte>(codes));
  }
  writer.commit();
  const TensorFile file = TensorFile::open(path());
  EXPECT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.folder()->shards().size(), 4u);
  EXPECT_EQ(file.require("v").format, Format(BlockFormat::q4_0));
  EXPECT_EQ(file.require("w").scale_values, (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(file.require("w").shape, (Shape{4, 8}));
  EXPECT_EQ(file.require("y").type, "int4");
  EXPECT_EQ(file.require("w-x").type, "U8");
}

// ---- reference models

TEST(ReferenceFolder, ThreeShardsWithAnIndex) {
  const fs::path lm = testing::reference_folder() / "lm";
  if (!fs::exists(lm)) GTEST_SKIP() << testing::missing_reference("lm");
  const TensorFile file = TensorFile::open(lm);
  EXPECT_EQ(file.folder()->shards().size(), 3u);
  EXPECT_TRUE(file.folder()->notes().empty()) << "total_size is that of the tensors";
  EXPECT_EQ(file.tensors().size(), 56u);
  EXPECT_TRUE(file.folder()->tokenizer().has_value());
  EXPECT_EQ(file.require("model.embed_tokens.weight").shape, (Shape{8192, 512}));
  EXPECT_EQ(file.require("model.embed_tokens.weight").format, Format(DType::bfloat16));
  for (const StoredTensor& tensor : file.tensors()) EXPECT_NO_THROW(check_values(tensor));

  // Rewritten with other shards, each tensor has the same bytes.
  const TempDir folder;
  Entries entries;
  for (const StoredTensor& tensor : file.tensors()) {
    entries.push_back({tensor.name, *tensor.safetensors_type, tensor.shape});
  }
  HuggingFaceWriter writer(folder.path(), entries, {{"config.json", std::string(file.folder()->config().text())}}, {},
                           10'000'000);
  const Entries due(writer.entries().begin(), writer.entries().end());
  for (const SafetensorsEntry& entry : due) writer.write(entry.name, file.require(entry.name).bytes);
  writer.commit();
  const TensorFile copy = TensorFile::open(folder.path());
  EXPECT_GT(copy.folder()->shards().size(), 3u);
  EXPECT_EQ(copy.tensors().size(), file.tensors().size());
  for (const StoredTensor& tensor : file.tensors()) {
    const auto bytes = copy.require(tensor.name).bytes;
    ASSERT_EQ(bytes.size(), tensor.bytes.size());
    EXPECT_EQ(std::memcmp(bytes.data(), tensor.bytes.data(), bytes.size()), 0) << tensor.name;
  }
}

TEST(ReferenceFolder, EveryArchitecture) {
  const fs::path models = fs::path(IMAGO_TEST_DATA) / "torch/models";
  std::size_t count = 0;
  for (const auto& entry : fs::directory_iterator(models)) {
    const TensorFile file = TensorFile::open(entry.path());
    EXPECT_FALSE(file.tensors().empty()) << entry.path();
    for (const StoredTensor& tensor : file.tensors()) {
      EXPECT_NO_THROW(check_values(tensor)) << entry.path() << tensor.name;
      EXPECT_TRUE(is_decodable(tensor));
    }
    ++count;
  }
  EXPECT_EQ(count, testing::kTorchModels.size());
}

}  // namespace
}  // namespace imago::files
