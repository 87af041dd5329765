// The commands that run language models: logits, eval, bench MODEL, synth.

#include <cmath>
#include <filesystem>
#include <fstream>

#include "imago.h"
#include "imago/files.h"
#include "testing/temp_dir.h"
#include "testing/torch_models.h"

namespace imago::testing {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

class LanguageModelCommands : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string model(const std::string& name) const {
    const auto found = find_torch_model(name);
    if (!found) throw std::runtime_error(missing_torch_model(name));
    return *found;
  }
  /// A model of random weights, smaller than any of use.
  std::string random_model(const std::string& type = "q8_0") const {
    const std::string path = file(type + ".gguf");
    const ProcessResult made =
        imago_run({"synth",          path,  "--type",  type, "--width",    "256", "--blocks",     "2",
                   "--feed-forward", "512", "--heads", "4",  "--kv-heads", "2",   "--vocabulary", "600",
                   "--ctx",          "128", "-t",      "1"});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    EXPECT_EQ(made.out + made.err, "");
    return path;
  }
  TempDir folder_;
};

TEST_F(LanguageModelCommands, AreListedAndHaveHelp) {
  const std::string list = imago_run({"--help"}).out;
  for (const std::string command : {"run", "chat", "tokenize", "logits", "eval"}) {
    EXPECT_NE(list.find("  " + command + " "), std::string::npos) << list;
  }
  for (const char* command : {"run", "chat", "logits", "eval"}) expect_help(command);
}

TEST_F(LanguageModelCommands, AFileWithoutVocabularyRunsWithIdsOnly) {
  const std::string path = file("no_vocab.gguf");
  const ProcessResult made = imago_run({"convert", model("qwen3_moe_f32"), path, "-q"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  expect_error(imago_run({"run", path, "-p", "text", "-n", "1", "-q"}), 1,
               "no_vocab.gguf has no tokenizer: convert the model again");
  EXPECT_EQ(imago_run({"logits", path, "--ids", "1,2", "-o", file("out.safetensors")}).exit_code, 0);
}

TEST_F(LanguageModelCommands, LogitsAreOneTensor) {
  const std::string folder = model("gemma2_softcap_f32");
  std::ifstream in(folder + "/reference.json");
  const Json reference = Json::parse(in);
  std::string ids;
  for (const Json& id : reference.at("ids")) ids += (ids.empty() ? "" : ",") + id.dump();
  for (const char* batch : {"512", "5"}) {
    const ProcessResult result = imago_run(
        {"logits", folder, "--ids", ids, "--exact", "-o", file("out.safetensors"), "-t", "1", "--batch", batch});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out + result.err, "");
    const SafetensorsFile out = SafetensorsFile::open(file("out.safetensors"));
    ASSERT_EQ(out.tensors().size(), 1u);
    EXPECT_EQ(out.tensors()[0].type, SafetensorsType::f32);
    const Tensor<float> logits = out.read_float32("logits");
    const std::size_t vocabulary = reference.at("logits").at(0).size();
    ASSERT_EQ(logits.shape(), (Shape{reference.at("ids").size(), vocabulary}));
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double wanted = reference.at("logits").at(i / vocabulary).at(i % vocabulary).get<double>();
      ASSERT_NEAR(static_cast<double>(logits[i]), wanted, 2e-3) << i;
    }
  }
}

TEST_F(LanguageModelCommands, MistakesAreTold) {
  const std::string folder = model("llama3_rope_scaling_f16");
  const auto logits = [&](const std::string& ids) {
    return imago_run({"logits", folder, "--ids", ids, "-o", file("out.safetensors"), "-t", "1"});
  };
  expect_error(logits("1,x"), 2, "--ids: number 2 is missing or not a number; write them as 1,2,3");
  expect_error(logits("1,,2"), 2, "--ids: number 2 is missing");
  expect_error(logits(""), 2, "--ids");
  expect_error(logits("1 2"), 2, "--ids: '2' after number 1");
  expect_error(logits("99999999999"), 2, "--ids: number 1 is too large");
  expect_error(logits("1,256"), 2, "token 1 is 256; the vocabulary of this model has the ids 0 to 255");
  expect_error(logits("-1"), 2, "token 0 is -1");
  EXPECT_FALSE(std::filesystem::exists(file("out.safetensors")));
  expect_error(imago_run({"logits", file("none"), "--ids", "1", "-o", file("out.safetensors")}), 1, file("none"));
  folder_.write("text", "some words");
  expect_error(imago_run({"eval", folder, "--text", file("text")}), 1, folder + " has no tokenizer");
  ASSERT_EQ(imago_run({"convert", folder, file("mute.gguf"), "-q"}).exit_code, 0);
  expect_error(imago_run({"run", file("mute.gguf"), "-p", "a"}), 1, file("mute.gguf") + " has no tokenizer");
  expect_error(imago_run({"tokenize", file("mute.gguf"), "--text", "a"}), 1, file("mute.gguf") + " has no tokenizer");
  expect_error(imago_run({"tokenize", folder + "/model.safetensors", "--text", "a"}), 1, "name its folder");
  expect_error(imago_run({"bench", file("none.gguf")}), 1, "none.gguf: cannot open");
  expect_error(imago_run({"bench", "kernel"}), 2, "imago bench kernels");
  expect_error(imago_run({"eval", folder, "--text", file("missing")}), 1, "missing: cannot open");
  expect_error(imago_run({"synth", file("m.gguf"), "--width", "100"}), 2, "--heads");
  expect_error(imago_run({"synth", file("m.gguf"), "--type", "int4"}), 2, "--type: GGUF has no int4");
  expect_error(imago_run({"synth", file("m.gguf"), "--like", "clippy"}), 2, "known models are llama, deepseek_v2_lite");
  expect_error(imago_run({"synth", file("m.gguf"), "--like", "mamba_2.8b", "--kv-heads", "2"}), 2,
               "has no 'num_key_value_heads' to change");
  expect_error(imago_run({"synth", file("m.gguf"), "--vocabulary", "9"}), 2, "9 tokens are too few");
}

TEST_F(LanguageModelCommands, RandomModelsRunInEveryCommand) {
  for (const char* type : {"q8_0", "q4_k", "bf16"}) {
    const std::string path = random_model(type);
    std::string text;
    for (int i = 0; i < 30; ++i) text += "the quick brown fox ";
    folder_.write("text", text);
    const Json eval =
        expect_json(imago_run({"eval", path, "--text", file("text"), "--ctx", "32", "--json", "-t", "1"}));
    EXPECT_GT(eval.at("perplexity").get<double>(), 1.0);
    const auto windows = eval.at("windows").get<int>();
    EXPECT_GT(windows, 10);
    EXPECT_EQ(eval.at("tokens_scored"), windows * 15);
    expect_error(imago_run({"eval", path, "--text", file("text"), "--ctx", "100000"}), 1, "fewer than one window");

    const Json bench = expect_json(imago_run({"bench", path, "-p", "8", "-n", "4", "-r", "2", "--json", "-t", "1"}));
    EXPECT_EQ(bench.at("model"), path);
    EXPECT_EQ(bench.at("type"), std::string(type) == "bf16" ? "bfloat16" : type);
    EXPECT_GT(bench.at("bytes").get<double>(), 0);
    EXPECT_EQ(bench.at("threads"), 1);
    ASSERT_EQ(bench.at("results").size(), 2u);
    EXPECT_EQ(bench.at("results")[0].at("test"), "pp8");
    EXPECT_EQ(bench.at("results")[1].at("test"), "tg4");
    for (const Json& result : bench.at("results")) {
      EXPECT_GT(result.at("tokens_per_second").get<double>(), 0);
      EXPECT_GE(result.at("stddev").get<double>(), 0);
    }
  }
  expect_error(imago_run({"bench", file("q8_0.gguf"), "-p", "129"}), 2, "129 tokens do not fit the context of 128");
}

TEST_F(LanguageModelCommands, SynthMakesModelsLikePublishedOnes) {
  const std::string path = file("like.gguf");
  const auto make = [&](const std::vector<std::string>& more) {
    std::vector<std::string> command = {"synth", path, "--type", "q4_0", "--vocabulary", "600", "-t", "1", "--like"};
    command.insert(command.end(), more.begin(), more.end());
    const ProcessResult made = imago_run(command);
    ASSERT_EQ(made.exit_code, 0) << made.err;
    EXPECT_EQ(imago_run({"logits", path, "--ids", "1,2,3", "-o", file("out.safetensors"), "-t", "1"}).exit_code, 0);
  };
  make({"gemma3_1b", "--width", "64", "--blocks", "7", "--feed-forward", "64"});
  EXPECT_EQ(GgufFile::open(path).architecture(), "gemma3");
  make({"qwen3_5_moe", "--width", "32", "--blocks", "4"});
  EXPECT_EQ(GgufFile::open(path).require_integer("qwen35moe.expert_count", 1, 1000), 256);
  EXPECT_NE(GgufFile::open(path).find_tensor("blk.3.attn_q.weight"), nullptr);
  EXPECT_NE(GgufFile::open(path).find_tensor("blk.2.ssm_out.weight"), nullptr);
  // The list of 16 blocks is repeated: the third of them attends.
  make({"lfm2_1.2b", "--width", "64", "--blocks", "19", "--feed-forward", "64", "--heads", "2", "--kv-heads", "1"});
  EXPECT_NE(GgufFile::open(path).find_tensor("blk.18.attn_q.weight"), nullptr);
  EXPECT_EQ(GgufFile::open(path).find_tensor("blk.17.attn_q.weight"), nullptr);
}

TEST_F(LanguageModelCommands, NetworksThatAreLanguageModelsRun) {
  const std::string gguf = file("tiny.gguf");
  ASSERT_EQ(imago_run({"synth",          gguf,  "--type",  "f16", "--width",    "64", "--blocks",     "2",
                       "--feed-forward", "96",  "--heads", "4",   "--kv-heads", "2",  "--vocabulary", "512",
                       "--ctx",          "128", "-t",      "1",   "-q"})
                .exit_code,
            0);
  std::string text;
  for (int i = 0; i < 40; ++i) text += "the quick brown fox ";
  folder_.write("text", text);
  const auto perplexity = [&](const std::string& path, Words more = {}) {
    Words words = {"eval", path, "--text", file("text"), "--ctx", "32", "--json", "-t", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return expect_json(imago_run(words)).at("perplexity").get<double>();
  };
  const double wanted = perplexity(gguf);
  // Tokens beyond the tokenizer only fill up the vocabulary.
  Words generation = {"-p", "fox", "-n", "6", "--temp", "0", "--exact", "-t", "1", "-q"};
  for (int id = 259; id < 512; ++id) generation.insert(generation.end(), {"-l", std::to_string(id) + "=-inf"});
  const auto continuation = [&](const std::string& path) {
    Words words = {"run", path};
    words.insert(words.end(), generation.begin(), generation.end());
    const ProcessResult result = imago_run(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  for (const char* name : {"m.entity", "m.json", "m.safetensors", "m.gguf"}) {
    ASSERT_EQ(imago_run({"convert", gguf, file("first.json"), "-q"}).exit_code, 0);
    ASSERT_EQ(imago_run({"convert", file("first.json"), file(name), "-q"}).exit_code, 0);
    EXPECT_NEAR(perplexity(file(name)), wanted, 1e-6 * wanted) << name;
    EXPECT_EQ(continuation(file(name)), continuation(gguf)) << name;
    EXPECT_EQ(expect_json(imago_run({"tokenize", file(name), "--text", "quick", "--json"})),
              expect_json(imago_run({"tokenize", gguf, "--text", "quick", "--json"})));
  }
  EXPECT_EQ(imago_run({"bench", file("m.entity"), "-p", "8", "-n", "2", "-r", "1", "-t", "1"}).exit_code, 0);

  // What is measured on a text is measured on the model that the network is.
  ASSERT_EQ(imago_run({"convert", gguf, file("folder/"), "-q"}).exit_code, 0);
  for (const char* name : {"m.entity", "m.json", "m.safetensors"}) {
    SCOPED_TRACE(name);
    const auto measured = [&](std::vector<std::string> words) {
      words.insert(words.end(), {"--text", file("text"), "--ctx", "32", "--json", "-t", "1", "-q"});
      return expect_json(imago_run(words));
    };
    const nlohmann::json same = measured({"compare", gguf, file(name)});
    EXPECT_NEAR(same["overall"].get<double>(), 1, 1e-6);
    EXPECT_LT(same["kl_mean"].get<double>(), 1e-6);
    const auto bits = [&](const std::string& path) {
      const nlohmann::json report = measured({"plan", path, "--bits", "5", "-o", file("plan.json")});
      return report["predicted"];
    };
    EXPECT_EQ(bits(file(name)), bits(file("folder")));
    const nlohmann::json calibrated = measured({"calibrate", file(name), "-o", file(std::string(name) + ".cal")});
    EXPECT_EQ(calibrated["matrices"],
              measured({"calibrate", gguf, "-o", file(std::string(name) + ".gguf.cal")})["matrices"]);
  }

  // Without a tokenizer of its own it takes another's.
  const std::string mute = file("mute.json");
  ASSERT_EQ(imago_run({"convert", model("llama_tied_f32"), mute, "-q"}).exit_code, 0);
  expect_error(imago_run({"eval", mute, "--text", file("text")}), 1, "was saved without a tokenizer");
  expect_error(imago_run({"eval", mute, "--text", file("text"), "--tokenizer", gguf}), 2,
               "they do not belong together");
  EXPECT_NEAR(perplexity(gguf, {"--tokenizer", file("m.entity")}), wanted, 1e-9);

  // The network computes what the folder does, and what a network that is none says why.
  std::vector<std::pair<std::string, Tensor<float>>> input;
  input.emplace_back("x", Tensor<float>(Shape{4}, {3, 250, 7, 0}));
  save_safetensors(file("x.safetensors"), input);
  ASSERT_EQ(imago_run({"forward", mute, "--input", file("x.safetensors"), "-o", file("y.safetensors")}).exit_code, 0);
  const auto logits = [&](const std::string& path, const std::string& out) {
    EXPECT_EQ(imago_run({"logits", path, "--ids", "3,250,7,0", "-q", "-o", file(out)}).exit_code, 0);
    return SafetensorsFile::open(file(out)).read_float32("logits");
  };
  const Tensor<float> direct = logits(model("llama_tied_f32"), "l.safetensors");
  const Tensor<float> network = SafetensorsFile::open(file("y.safetensors")).read_float32("y");
  ASSERT_EQ(network.shape(), direct.shape());
  for (std::size_t i = 0; i < direct.size(); ++i) ASSERT_NEAR(network[i], direct[i], 1e-4);
  folder_.write("dense.json", R"({"depth": 1, "rows": 1, "cols": 1, "layers_per_cell": 1, "layers": [
    {"type": "Dense", "input_height": 2, "output_height": 2, "weights": "AAAAAAAAAAAAAAAAAAAAAA=="}]})");
  expect_error(imago_run({"run", file("dense.json"), "-p", "a"}), 1, "is not a language model");

  // Trained on a text by its own tokenizer it predicts that better, also as a folder.
  ASSERT_EQ(imago_run({"train", file("m.entity"), "--data", file("text"), "--text-context", "16", "--epochs", "4",
                       "--batch", "4", "--optimizer", "adam", "--lr", "0.003", "-o", file("t.entity"), "-q", "-t", "1"})
                .exit_code,
            0);
  EXPECT_LT(perplexity(file("t.entity")), wanted / 2);
  ASSERT_EQ(imago_run({"convert", file("t.entity"), file("trained/"), "-q"}).exit_code, 0);
  EXPECT_NEAR(perplexity(file("trained")), perplexity(file("t.entity")), 1e-6 * wanted);
}

}  // namespace
}  // namespace imago::testing
