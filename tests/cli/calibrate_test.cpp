// imago calibrate, and imago morph with what it found.

#include <filesystem>
#include <fstream>
#include <iterator>

#include "imago.h"
#include "imago/files.h"
#include "testing/temp_dir.h"

namespace imago::testing {
namespace {

using Json = nlohmann::json;

class Calibrate : public ::testing::Test {
 protected:
  void SetUp() override {
    const ProcessResult made = imago_run({"synth",
                                          file("model.gguf"),
                                          "--type",
                                          "f32",
                                          "--width",
                                          "256",
                                          "--blocks",
                                          "1",
                                          "--feed-forward",
                                          "256",
                                          "--heads",
                                          "4",
                                          "--kv-heads",
                                          "2",
                                          "--vocabulary",
                                          "600",
                                          "--ctx",
                                          "128",
                                          "-t",
                                          "1"});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    std::ofstream text(file("text.txt"));
    for (int i = 0; i < 900; ++i) text << static_cast<char>('a' + i * i % 26) << (i % 5 == 0 ? " " : "");
  }
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }
  Json calibrate(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"calibrate", file("model.gguf"),
                                      "--text",    file("text.txt"),
                                      "-o",        file("c.gguf"),
                                      "--ctx",     "32",
                                      "--json",    "-t",
                                      "1"};
    words.insert(words.end(), more.begin(), more.end());
    return expect_json(imago_run(words));
  }
  TempDir folder_;
};

TEST_F(Calibrate, HasHelp) {
  expect_help("calibrate");
  const std::string help = imago_run({"morph", "--help"}).out;
  for (const char* option : {"--importance", "--method"}) EXPECT_NE(help.find(option), std::string::npos) << help;
}

TEST_F(Calibrate, WritesWhatMorphReads) {
  const Json report = calibrate();  // as a newcomer types it
  EXPECT_EQ(report["products"], true);
  EXPECT_GT(report["windows"].get<int>(), 3);
  EXPECT_EQ(report["rows"], report["windows"].get<int>() * 32);
  EXPECT_EQ(report["bytes"], std::filesystem::file_size(file("c.gguf")));
  std::vector<double> errors;
  for (const char* method : {"plain", "nearest", "gptq", "awq"}) {
    std::vector<std::string> words = {
        "morph", file("model.gguf"), file("out.gguf"), "--to", "q4_0", "--pure", "--json", "-t", "1"};
    if (std::string(method) != "plain") {
      words.insert(words.end(), {"--importance", file("c.gguf"), "--method", method});
    }
    errors.push_back(expect_json(imago_run(words))["error"].get<double>());
    EXPECT_EQ(imago_run({"logits", file("out.gguf"), "--ids", "1,2", "-o", file("l.safetensors")}).exit_code, 0);
  }
  const auto bytes_of = [&](const std::vector<std::string>& method) {
    std::vector<std::string> words = {"morph", file("model.gguf"), file("same.gguf"), "--to", "q4_0", "--pure",
                                      "-q",    "--importance",     file("c.gguf")};
    words.insert(words.end(), method.begin(), method.end());
    EXPECT_EQ(imago_run(words).exit_code, 0);
    std::ifstream made(file("same.gguf"), std::ios::binary);
    return std::string{std::istreambuf_iterator<char>(made), {}};
  };
  EXPECT_EQ(bytes_of({}), bytes_of({"--method", "gptq"}));  // since the file has products
  // Every method rounds otherwise, and none runs away.
  for (std::size_t i = 1; i < errors.size(); ++i) {
    EXPECT_NE(errors[i], errors[0]);
    EXPECT_LT(errors[i], 3 * errors[0]);
  }
}

TEST_F(Calibrate, SaysWhatIsWrong) {
  const std::string model = file("model.gguf"), text = file("text.txt"), out = file("c.gguf");
  expect_error(imago_run({"calibrate", model, "-o", out}), 2, "--text FILE");
  expect_error(imago_run({"calibrate", model, "--text", text, "-o", out, "--ctx", "100000"}), 1, "100000");
  expect_error(imago_run({"morph", model, file("o.gguf"), "--to", "q4_0", "--method", "gptq"}), 2, "--importance");
  expect_error(imago_run({"morph", model, file("o.gguf"), "--to", "q4_0", "--importance", text}), 1, "llama-imatrix");
  expect_error(imago_run({"morph", model, file("o.gguf"), "--to", "q4_0", "--importance", model}), 1,
               "not a calibration");
  EXPECT_EQ(calibrate({"--no-products"})["products"], false);
  expect_error(imago_run({"morph", model, file("o.gguf"), "--to", "q4_0", "--importance", out, "--method", "gptq"}), 2,
               "--products");
  EXPECT_FALSE(std::filesystem::exists(file("o.gguf")));
}

TEST_F(Calibrate, NetworksAreCalibratedOnData) {
  std::ofstream(file("net.json")) << R"({"id":"n","depth":1,"rows":1,"cols":1,"layers_per_cell":1,"layers":[)"
                                  << R"({"type":"dense","activation":"relu","input_height":2,"output_height":3}]})";
  std::ofstream(file("data.csv")) << "a,b,y\n1,2,0\n3,4,1\n-1,0.5,1\n";
  const ProcessResult trained = imago_run(
      {"train", file("net.json"), "--data", file("data.csv"), "-o", file("trained.json"), "--epochs", "0", "-q"});
  if (trained.exit_code != 0) GTEST_SKIP() << trained.err;
  expect_error(imago_run({"calibrate", file("trained.json"), "-o", file("n.gguf")}), 2, "--data FILE");
  const Json report = expect_json(
      imago_run({"calibrate", file("trained.json"), "--data", file("data.csv"), "-o", file("n.gguf"), "--json"}));
  EXPECT_EQ(report["rows"], 3);
  EXPECT_EQ(report["matrices"], 1);
  for (const char* method : {"nearest", "gptq"}) {
    expect_json(imago_run({"morph", file("trained.json"), file("small.json"), "--to", "int4", "--importance",
                           file("n.gguf"), "--method", method, "--json"}));
  }
  expect_error(imago_run({"morph", file("trained.json"), file("small.json"), "--to", "int4", "--importance",
                          file("n.gguf"), "--method", "awq"}),
               1, "language models");
}

}  // namespace
}  // namespace imago::testing
