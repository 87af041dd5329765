// imago plan, and morph that follows it.

#include <filesystem>
#include <fstream>
#include <map>

#include "imago.h"
#include "imago/files.h"
#include "imago/precision.h"
#include "testing/dense_stack.h"
#include "testing/temp_dir.h"

namespace imago::testing {
namespace {

using Json = nlohmann::json;

class Plan : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }
  /// A model of random weights whose rows fit every block.
  std::string random_model() const {
    const std::string path = file("model.gguf");
    const ProcessResult made =
        imago_run({"synth",          path,  "--type",  "float16", "--width",    "256", "--blocks",     "2",
                   "--feed-forward", "256", "--heads", "4",       "--kv-heads", "2",   "--vocabulary", "600",
                   "--ctx",          "128", "-t",      "1"});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    return path;
  }
  std::string text_file() const {
    std::string text;
    for (int i = 0; i < 400; ++i) text += "ship number " + std::to_string(i * i % 97) + "; ";
    folder_.write("text.txt", text);
    return file("text.txt");
  }
  std::map<std::string, std::string> types_of(const std::string& path) const {
    std::map<std::string, std::string> types;
    for (const TensorSummary& tensor : inspect_model(path).tensors) types[tensor.name] = tensor.type;
    return types;
  }
  TempDir folder_;
};

TEST_F(Plan, HasHelp) { expect_help("plan"); }

TEST_F(Plan, OfALanguageModelIsFollowedByMorph) {
  const std::string model = random_model(), text = text_file(), plan = file("plan.json"), known = file("known.gguf");
  const ProcessResult calibrated =
      imago_run({"calibrate", model, "--text", text, "--ctx", "64", "--products", "-o", known, "-q", "-t", "1"});
  ASSERT_EQ(calibrated.exit_code, 0) << calibrated.err;
  const Json report =
      expect_json(imago_run({"plan", model, "--bits", "4.6", "--text", text, "--types", "q4_k,q8_0", "--importance",
                             known, "--ctx", "64", "--windows", "2", "-o", plan, "--json", "-t", "1"}));
  EXPECT_LE(report.at("bits_per_weight").get<double>(), 4.6);
  EXPECT_LE(report.at("bytes").get<std::uint64_t>(), report.at("budget_bytes").get<std::uint64_t>());
  EXPECT_LE(report.at("measured").at("kl").get<double>(), report.at("uniform").at("kl").get<double>());
  EXPECT_GT(report.at("original").at("perplexity").get<double>(), 1);
  EXPECT_GT(report.at("seconds").get<double>(), 0);

  expect_error(imago_run({"morph", model, file("out.gguf"), "--plan", plan}), 2, "needs a calibration");
  const Json morphed = expect_json(
      imago_run({"morph", model, file("out.gguf"), "--plan", plan, "--importance", known, "--json", "-t", "1"}));
  const auto types = types_of(file("out.gguf"));
  std::uint64_t bytes = 0;
  for (const Json& tensor : report.at("tensors")) {
    EXPECT_EQ(parse_format(types.at(tensor.at("name"))), parse_format(tensor.at("type").get<std::string>()));
    bytes += tensor.at("bytes").get<std::uint64_t>();
  }
  EXPECT_EQ(bytes, report.at("bytes"));
  EXPECT_LT(bytes, morphed.at("bytes_after").get<std::uint64_t>()) << "vectors stay float32";
}

TEST_F(Plan, CanBeEdited) {
  const std::string model = random_model();
  folder_.write("plan.json", R"({"imago_plan": 1, "tensors": {"blk.1.ffn_up.weight": "q6_k"}})");
  const ProcessResult result =
      imago_run({"morph", model, file("out.gguf"), "--plan", file("plan.json"), "--to", "q4_k", "--pure", "-q"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto types = types_of(file("out.gguf"));
  EXPECT_EQ(parse_format(types.at("blk.1.ffn_up.weight")), Format(BlockFormat::q6_k));
  EXPECT_EQ(parse_format(types.at("blk.0.ffn_up.weight")), Format(BlockFormat::q4_k));

  folder_.write("plan.json", R"({"imago_plan": 1, "tensors": {"blk.1.ffn_upp.weight": "q6_k"}})");
  expect_error(imago_run({"morph", model, file("out.gguf"), "--plan", file("plan.json")}), 2,
               "the model has no tensor 'blk.1.ffn_upp.weight'; near to it are 'blk.1.ffn_up.weight'");
  folder_.write("plan.json", R"({"imago_plan": 1, "tensors": {"blk.1.ffn_up.weight": "q6_kk"}})");
  expect_error(imago_run({"morph", model, file("out.gguf"), "--plan", file("plan.json")}), 1,
               "tensor 'blk.1.ffn_up.weight'");
}

TEST_F(Plan, IsFollowedToTheLetterOrNotAtAll) {
  SafetensorsWriter writer(file("bag.safetensors"), {{"odd", SafetensorsType::f32, {3, 33}}});
  writer.write("odd", std::span<const float>(std::vector<float>(99, 0.5f)));
  writer.commit();
  folder_.write("plan.json", R"({"imago_plan": 1, "tensors": {"odd": "q4_0"}})");
  expect_error(imago_run({"morph", file("bag.safetensors"), file("out.gguf"), "--plan", file("plan.json")}), 2,
               "'odd' cannot be q4_0: its rows of 33 are not a multiple of the block of 32");
  folder_.write("plan.json", R"({"imago_plan": 1, "tensors": {"odd": "int4"}})");
  expect_error(imago_run({"morph", file("bag.safetensors"), file("out.gguf"), "--plan", file("plan.json")}), 1, "int4");
  expect_error(imago_run({"morph", file("bag.safetensors"), file("out.gguf")}), 2, "--to is required");
  EXPECT_FALSE(std::filesystem::exists(file("out.gguf")));
}

TEST_F(Plan, OfANetworkIsJudgedOnData) {
  constexpr int kWidths[] = {2, 16, 2};
  save_network(dense_stack(kWidths, Activation::tanh, 3), file("net.json"));
  std::ofstream data(file("data.csv"));
  for (int i = 0; i < 40; ++i) data << i % 7 << ',' << i % 5 << ',' << (i % 7 > i % 5 ? 1 : 0) << '\n';
  data.close();
  const Json report = expect_json(imago_run({"plan", file("net.json"), "--bits", "9", "--data", file("data.csv"), "-o",
                                             file("plan.json"), "--json", "-t", "1"}));
  EXPECT_TRUE(report.at("measured").contains("accuracy")) << "class numbers";
  EXPECT_LE(report.at("measured").at("loss").get<double>(), report.at("uniform").at("loss").get<double>());
  const ProcessResult result = imago_run({"morph", file("net.json"), file("out.json"), "--plan", file("plan.json")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const Network network = load_network(file("out.json"));
  for (const Json& tensor : report.at("tensors")) {
    const std::size_t index = tensor.at("name") == "layers.0" ? 0 : 1;
    EXPECT_EQ(network.layers()[index].config.dtype.name(), tensor.at("type"));
  }
}

TEST_F(Plan, ACsvFileMayHaveSeveralTargets) {
  constexpr int kWidths[] = {2, 8, 2};
  save_network(dense_stack(kWidths, Activation::tanh, 3), file("two.json"));
  std::ofstream data(file("two.csv"));
  for (int i = 0; i < 40; ++i) data << i % 7 << ',' << i % 5 << ',' << i % 3 << ',' << i % 2 << '\n';
  data.close();
  const Json report = expect_json(imago_run({"plan", file("two.json"), "--bits", "9", "--data", file("two.csv"),
                                             "--targets", "2", "-o", file("plan.json"), "--json", "-t", "1"}));
  EXPECT_FALSE(report.at("measured").contains("accuracy")) << "two numbers are not a class";
  EXPECT_EQ(imago_run({"plan", file("two.json"), "--bits", "9", "--text", file("two.csv"), "--targets", "2", "-o",
                       file("plan.json")})
                .exit_code,
            2)
      << "--targets needs --data";
}

TEST_F(Plan, RefusesWhatMakesNoSense) {
  const std::string model = random_model(), text = text_file();
  expect_error(imago_run({"plan", model, "--text", text, "-o", file("p.json")}), 2, "a plan needs a budget");
  expect_error(imago_run({"plan", model, "--bits", "2", "--text", text, "-o", file("p.json")}), 2,
               "the smallest possible is 2.625 bits per weight");
  expect_error(imago_run({"plan", model, "--bits", "4.5", "-o", file("p.json")}), 2, "give --text FILE");
  expect_error(imago_run({"plan", model, "--bits", "4.5", "--text", text, "--types", "q4_x", "-o", file("p.json")}), 2,
               "q4_x");
  folder_.write("short.txt", "one word");
  expect_error(imago_run({"plan", model, "--bits", "4.5", "--text", file("short.txt"), "-o", file("p.json")}), 2,
               "fewer than one window");
  EXPECT_FALSE(std::filesystem::exists(file("p.json")));
}

}  // namespace
}  // namespace imago::testing
