#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <thread>

#include "imago.h"
#include "imago/codec.h"
#include "imago/files.h"
#include "imago/models.h"
#include "testing/temp_dir.h"

namespace imago::testing {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<float> wave(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(std::sin(0.37 * static_cast<double>(i)));
  return values;
}

class Convert : public ::testing::Test {
 protected:
  Convert() { write_bag("bag.safetensors"); }
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_.path()), {}));
  }
  /// A matrix whose rows fit every block, one whose rows fit none, a vector.
  void write_bag(const std::string& name, float last = 0) const {
    SafetensorsWriter writer(file(name), {{"m", SafetensorsType::f32, {64, 512}},
                                          {"odd", SafetensorsType::f32, {3, 33}},
                                          {"v", SafetensorsType::f32, {100}}});
    std::vector<float> values = wave(64 * 512);
    values.back() = last;
    writer.write("m", std::span<const float>(values));
    writer.write("odd", std::span<const float>(values).first(99));
    writer.write("v", std::span<const float>(values).first(100));
    writer.commit();
  }
  /// `copies` matrices of 4 MiB, so that work takes a while.
  void write_large(const std::string& name, std::size_t copies) const {
    std::vector<SafetensorsEntry> entries;
    for (std::size_t i = 0; i < copies; ++i)
      entries.push_back({"m" + std::to_string(i), SafetensorsType::f32, {1024, 1024}});
    SafetensorsWriter writer(file(name), entries);
    const std::vector<float> values = wave(std::size_t{1} << 20);
    for (const SafetensorsEntry& entry : writer.entries()) writer.write(entry.name, std::span<const float>(values));
    writer.commit();
  }
  ProcessResult convert(const std::string& in, const std::string& out, const Words& more = {}) const {
    Words words{"convert", file(in), file(out)};
    words.insert(words.end(), more.begin(), more.end());
    return imago_run(words);
  }
  TempDir folder_;
};

TEST_F(Convert, RemoteLinksInACircleOrToNowhereAreRefusedAtTheirLayer) {
  const auto link = [](int target, int at) {
    return fmt::format(
        R"({{"type":"Parallel","combine_mode":"add","l":{},"parallel_branches":[)"
        R"({{"is_remote_link":true,"target_l":{}}},{{"type":"Dense","input_height":2,"output_height":2}}]}})",
        at, target);
  };
  const auto expect = [&](const std::string& layers, int count, std::string_view problem) {
    folder_.write("net.json",
                  fmt::format(R"({{"depth":1,"rows":1,"cols":1,"layers_per_cell":{},"layers":[{}]}})", count, layers));
    for (const std::string out : {"out.entity", "out.gguf", "out.safetensors"}) {
      const ProcessResult result = convert("net.json", out);
      EXPECT_EQ(result.exit_code, 1) << result.err;
      EXPECT_NE(result.err.find("net.json: "), std::string::npos) << result.err;
      EXPECT_NE(result.err.find(problem), std::string::npos) << result.err;
      EXPECT_FALSE(std::filesystem::exists(file(out)));
    }
  };
  expect(link(1, 0) + "," + link(0, 1), 2, "remote links run in a circle: (0,0,0,0) -> (0,0,0,1) -> (0,0,0,0)");
  expect(link(0, 0), 1, "remote links run in a circle: (0,0,0,0) -> (0,0,0,0)");
  expect(link(7, 0), 1, "its remote link leads nowhere");
  expect(link(-1, 0), 1, "its remote link leads nowhere");
}

TEST_F(Convert, ArraysOfArraysInGgufAreRefused) {
  std::string gguf = "GGUF";
  const auto add = [&](auto number) { gguf.append(reinterpret_cast<const char*>(&number), sizeof number); };
  add(3u), add(std::uint64_t{0}), add(std::uint64_t{1}), add(std::uint64_t{3});
  gguf += "k.k";
  add(9u), add(9u), add(std::uint64_t{1}), add(0u), add(std::uint64_t{1});
  gguf += std::string(41, 'a');
  folder_.write("nested.gguf", gguf);
  for (const ProcessResult& result :
       {convert("nested.gguf", "out.gguf"), imago_run({"inspect", file("nested.gguf"), "--json"})}) {
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_NE(result.err.find("'k.k' is an array of arrays"), std::string::npos) << result.err;
  }
}

TEST_F(Convert, ABagGoesToEveryFormAndBack) {
  const Json report = expect_json(convert("bag.safetensors", "a.gguf", {"--json"}));
  EXPECT_EQ(report.at("from"), "safetensors");
  EXPECT_EQ(report.at("to"), "gguf");
  EXPECT_EQ(report.at("parameters"), 64 * 512 + 99 + 100);
  EXPECT_EQ(report.at("bytes_before"), report.at("bytes_after"));
  EXPECT_EQ(report.at("types").at("float32").at("tensors"), 3);
  EXPECT_EQ(convert("a.gguf", "b.safetensors").exit_code, 0);
  const SafetensorsFile before = SafetensorsFile::open(file("bag.safetensors"));
  const SafetensorsFile after = SafetensorsFile::open(file("b.safetensors"));
  ASSERT_EQ(after.tensors().size(), 3u);
  for (const SafetensorsTensor& tensor : before.tensors()) {
    EXPECT_EQ(after.require(tensor.name).shape, tensor.shape);
    EXPECT_EQ(after.require(tensor.name).type, SafetensorsType::f32);
    EXPECT_TRUE(std::ranges::equal(after.require(tensor.name).bytes, tensor.bytes)) << tensor.name;
  }
}

TEST_F(Convert, TypesSizesAndErrorsAreTold) {
  const Json report = expect_json(imago_run(
      {"morph", file("bag.safetensors"), file("out.gguf"), "--to", "Q4_K", "--tensor-type", "^v$=float16", "--json"}));
  const GgufFile made = GgufFile::open(file("out.gguf"));
  EXPECT_EQ(made.find_tensor("m")->type.name, "Q4_K");
  EXPECT_EQ(made.find_tensor("odd")->type.name, "F32") << "no block fits its rows";
  EXPECT_EQ(made.find_tensor("v")->type.name, "F16");
  EXPECT_EQ(report.at("bytes_before"), (64 * 512 + 199) * 4);
  EXPECT_EQ(report.at("bytes_after"), 64 * 512 / 256 * 144 + 99 * 4 + 200);
  const Json& matrix = report.at("tensors").at(0);
  EXPECT_EQ(matrix.at("name"), "m");
  EXPECT_EQ(matrix.at("type"), "q4_k");
  EXPECT_EQ(matrix.at("from_type"), "float32");
  EXPECT_EQ(matrix.at("shape"), Json({64, 512}));
  EXPECT_EQ(matrix.at("reason"), "asked for");
  const Tensor<float> values = made.read_float32("m");
  std::vector<float> was = wave(64 * 512);
  was.back() = 0;
  EXPECT_NEAR(matrix.at("error").get<double>(), measure_distortion(was, values.values()).relative_rmse, 1e-9);
  EXPECT_GT(report.at("error").get<double>(), 0.0);
  EXPECT_EQ(report.at("tensors").at(1).at("error"), nullptr);

  const ProcessResult text = imago_run({"morph", file("bag.safetensors"), file("out.gguf"), "--to", "q8_0"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(text.err, "") << "progress without a terminal";
  for (const char* words : {"bits per weight", "relative error", "q8_0", "safetensors → gguf"}) {
    EXPECT_NE(text.out.find(words), std::string::npos) << text.out;
  }
}

TEST_F(Convert, ScalesGoWithTheirCodes) {
  const Json report =
      expect_json(imago_run({"morph", file("bag.safetensors"), file("out.safetensors"), "--to", "int4", "--granularity",
                             "block", "--group", "64", "--calibrate", "mse", "--json"}));
  EXPECT_EQ(report.at("tensors").at(0).at("bytes"), 64 * 512 / 2 + 64 * 512 / 64 * 4);
  const SafetensorsFile made = SafetensorsFile::open(file("out.safetensors"));
  EXPECT_EQ(made.require("m").type, SafetensorsType::u8);
  EXPECT_EQ(made.require("m.scales").shape, Shape{512});
  EXPECT_EQ(convert("out.safetensors", "back.safetensors", {"--to", "float32"}).exit_code, 0);
  const Tensor<float> back = SafetensorsFile::open(file("back.safetensors")).read_float32("m");
  std::vector<float> was = wave(64 * 512);
  was.back() = 0;
  EXPECT_NEAR(measure_distortion(was, back.values()).relative_rmse,
              report.at("tensors").at(0).at("error").get<double>(), 1e-6);
}

TEST_F(Convert, NetworksTakeTypesAndForms) {
  std::vector<Layer> layers;
  layers.push_back(dense(32, 64));
  save_network(Network(std::move(layers), 1), file("net.json"));
  const Json report =
      expect_json(imago_run({"morph", file("net.json"), file("net8.entity"), "--to", "int8", "--json"}));
  EXPECT_EQ(report.at("to"), "entity");
  EXPECT_EQ(report.at("tensors").at(0).at("type"), "int8");
  EXPECT_EQ(load_network(file("net8.entity")).layers()[0].config.dtype, DType::int8);
  EXPECT_EQ(convert("net8.entity", "net.gguf").exit_code, 0);
  EXPECT_NE(GgufFile::open(file("net.gguf")).find_tensor("layers.0"), nullptr);
  EXPECT_EQ(convert("net.json", "out.json", {"--to", "q4_0"}).exit_code, 0);
  EXPECT_EQ(load_network(file("out.json")).layers()[0].config.dtype, BlockFormat::q4_0);
  expect_error(convert("net.json", "folder"), 1, "Hugging Face");
}

TEST_F(Convert, ADryRunPrintsThePlanAndWritesNothing) {
  const ProcessResult text = convert("bag.safetensors", "out.gguf", {"--to", "q4_k", "--dry-run"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  for (const char* words : {"Plan", "64 × 512", "q4_k", "asked for", "rows of 33 fit no block of q4_k", "dry run"}) {
    EXPECT_NE(text.out.find(words), std::string::npos) << text.out;
  }
  const Json report = expect_json(convert("bag.safetensors", "out.gguf", {"--to", "q4_k", "--dry-run", "--json"}));
  EXPECT_EQ(report.at("dry_run"), true);
  EXPECT_EQ(report.at("tensors").size(), 3u);
  EXPECT_EQ(files(), 1u);
}

TEST_F(Convert, WrongCommandLinesGiveTwo) {
  expect_error(convert("bag.safetensors", "out.bin"), 2, ".gguf, .safetensors, .json or .entity");
  expect_error(convert("bag.safetensors", "out.gguf", {"--to", "q9_9"}), 2, "q9_9");
  expect_error(convert("bag.safetensors", "out.gguf", {"--tensor-type", "ffn"}), 2, "ffn_down=q6_k");
  expect_error(convert("bag.safetensors", "out.gguf", {"--tensor-type", "(=q4_0"}), 2, "regular expression");
  expect_error(convert("bag.safetensors", "out.gguf", {"--to", "q4_0", "--calibrate", "best"}), 2,
               "--calibrate is 'best'");
  expect_error(convert("bag.safetensors", "out.gguf", {"--to", "q4_0", "--calibrate", "mse"}), 2, "q4_0");
  expect_error(convert("bag.safetensors", "o.safetensors", {"--to", "int8", "--granularity", "channel"}), 2,
               "--granularity is 'channel'");
  expect_error(convert("bag.safetensors", "o.safetensors", {"--to", "int8", "--granularity", "block", "--group", "33"}),
               2, "33");
  expect_error(convert("bag.safetensors", "out.gguf", {"--pure"}), 2, "needs a type");
  expect_error(imago_run({"morph", file("bag.safetensors"), file("out.gguf")}), 2, "--to");
  expect_error(imago_run({"convert", file("bag.safetensors")}), 2, "OUT");
  EXPECT_EQ(files(), 1u);
}

TEST_F(Convert, FailuresNameTheFileAndLeaveTheOldOne) {
  folder_.write("old.gguf", "old");
  expect_error(convert("absent.gguf", "old.gguf"), 1, "absent.gguf");
  folder_.write("page.html", "<html></html>");
  expect_error(convert("page.html", "old.gguf"), 1, "page.html");
  expect_error(convert("bag.safetensors", "no/folder/out.gguf"), 1, "out.gguf");
  expect_error(convert("bag.safetensors", "old.gguf", {"--to", "int4"}), 1, "nearest in GGUF: q4_0");
  write_bag("nan.safetensors", std::numeric_limits<float>::quiet_NaN());
  expect_error(convert("nan.safetensors", "old.gguf", {"--to", "q4_0"}), 1, "'m'");
  expect_error(convert("nan.safetensors", "old.gguf"), 1, "nan.safetensors");
  EXPECT_EQ(read_file(file("old.gguf")), "old");
  EXPECT_EQ(files(), 4u);
  EXPECT_EQ(convert("nan.safetensors", "old.gguf", {"--allow-nonfinite"}).exit_code, 0);
}

TEST_F(Convert, TheOutputMayBeTheInput) {
  for (const char* reading : {"--quiet", "--eager"}) {
    write_bag("same.safetensors");
    EXPECT_EQ(convert("same.safetensors", "same.safetensors", {"--to", "bf16", reading}).exit_code, 0);
    EXPECT_EQ(SafetensorsFile::open(file("same.safetensors")).require("m").type, SafetensorsType::bf16);
  }
  EXPECT_EQ(files(), 2u);
}

TEST_F(Convert, AFullDiskLeavesTheOldFileAndNothingElse) {
  folder_.write("out.gguf", "old");
  write_large("large.safetensors", 8);
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit small = before;
  small.rlim_cur = 1 << 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);  // the child inherits it
  const ProcessResult result = convert("large.safetensors", "out.gguf", {"--to", "q8_0"});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  expect_error(result, 1, "out.gguf: cannot write: File too large");
  EXPECT_EQ(read_file(file("out.gguf")), "old");
  EXPECT_EQ(files(), 3u);
}

TEST_F(Convert, AnInterruptLeavesTheOldFileAndNothingElse) {
  folder_.write("out.gguf", "old");
  write_large("large.safetensors", 32);
  Words command{IMAGO_PROGRAM, "convert", file("large.safetensors"), file("out.gguf"), "--to", "q2_k", "-t", "1"};
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGINT, SIG_DFL);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  for (int i = 0; i < 5000 && files() == 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(files(), 4u) << "the file under way";
  ::kill(child, SIGINT);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_EQ(read_file(file("out.gguf")), "old");
  EXPECT_EQ(files(), 3u);
}

TEST_F(Convert, HintsSayWhatTensorsBecome) {
  SafetensorsWriter writer(file("parts.safetensors"), {{"a", SafetensorsType::f32, {12, 12}},
                                                       {"b", SafetensorsType::f32, {12, 12}},
                                                       {"c", SafetensorsType::f32, {12, 12}},
                                                       {"d", SafetensorsType::f32, {12, 12}}});
  for (const char* name : {"a", "b", "c", "d"}) writer.write(name, wave(144));
  writer.commit();
  EXPECT_EQ(convert("parts.safetensors", "heads.json", {"--heads", "3"}).exit_code, 0);
  EXPECT_EQ(load_network(file("heads.json")).layers()[0].config.num_heads, 3);
  EXPECT_EQ(convert("parts.safetensors", "hints.json", {"--hint", "3=embedding", "--hint", "0=dense"}).exit_code, 0);
  EXPECT_EQ(load_network(file("hints.json")).layers()[0].config.type, LayerType::embedding);
  expect_error(convert("parts.safetensors", "a.json", {"--heads", "5"}), 2, "cannot have 5 heads");
  expect_error(convert("parts.safetensors", "a.json", {"--hint", "9=dense"}), 2, "tensor 9");
  expect_error(convert("parts.safetensors", "a.json", {"--hint", "dense"}), 2, "'0=LSTM'");
  expect_error(convert("parts.safetensors", "a.json", {"--hint", "0=denze"}), 2, "denze");
  expect_error(convert("parts.safetensors", "a.gguf", {"--heads", "3"}), 2, "become a network");
}

}  // namespace
}  // namespace imago::testing
