// imago run and imago chat: with a model of random weights that `imago synth` makes, and with the trained one where it
// is here.

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "imago.h"
#include "testing/reference.h"
#include "testing/temp_dir.h"
#include "testing/terminal.h"

namespace imago::testing {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

class Run : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempDir;
    const ProcessResult made =
        imago_run({"synth", file("tiny.gguf"), "--type", "f32", "--width", "64", "--blocks", "1", "--feed-forward",
                   "64", "--heads", "2", "--kv-heads", "2", "--vocabulary", "512", "--ctx", "128", "-q"});
    ASSERT_EQ(made.exit_code, 0) << made.err;
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static std::string file(const std::string& name) { return (folder_->path() / name).string(); }
  static ProcessResult run(std::vector<std::string> words, const ProcessOptions& options = {}) {
    words.insert(words.begin(), {"run", file("tiny.gguf"), "-t", "1"});
    return imago_run(words, options);
  }
  static ProcessResult chat(const std::string& lines, std::vector<std::string> more = {}) {
    folder_->write("lines.txt", lines);
    std::vector<std::string> words = {"chat", file("tiny.gguf"), "-t", "1", "--temp", "0", "-n", "4"};
    words.insert(words.end(), more.begin(), more.end());
    return imago_run(words, {.stdin_from = file("lines.txt")});
  }
  static TempDir* folder_;
};
TempDir* Run::folder_ = nullptr;

TEST_F(Run, PrintsTheContinuationAndTimings) {
  const ProcessResult result = run({"-p", "the", "-n", "5", "--temp", "0", "--ignore-eos"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.out.ends_with("\n"));
  EXPECT_NE(result.err.find("generation: 5 tokens in "), std::string::npos) << result.err;
  const ProcessResult quiet = run({"-p", "the", "-n", "5", "--temp", "0", "--ignore-eos", "--quiet"});
  EXPECT_EQ(quiet.out, result.out);
  EXPECT_EQ(quiet.err, "");
}

TEST_F(Run, SaysWhichMatricesDidNotTakeTheTypeAskedFor) {
  const Words words = {"-p", "the", "-n", "1", "--type"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), words.begin(), words.end());
    return run(more);
  };
  const std::string note = "matrices, 64 weights long, fit no block of q4_k: they are q5_0";
  EXPECT_NE(with({"q4_k"}).err.find(note), std::string::npos) << with({"q4_k"}).err;
  EXPECT_EQ(with({"q4_k", "-q"}).err, "");
  EXPECT_EQ(with({"q5_0"}).err.find("note"), std::string::npos);
  const Json bench = expect_json(imago_run(
      {"bench", file("tiny.gguf"), "--type", "q4_k", "-p", "4", "-n", "4", "-r", "1", "-t", "1", "--json", "-q"}));
  EXPECT_EQ(bench.at("type"), "q5_0") << "as 'morph --to q4_k' of the same file";
  EXPECT_NE(bench.at("notes").at(0).get<std::string>().find(note), std::string::npos);
  EXPECT_EQ(bench.at("arithmetic"), "fast");
}

TEST_F(Run, ThePromptComesFromAFileOrStandardInputToo) {
  const std::string wanted = run({"-p", "the other", "-n", "8", "--temp", "0", "-q"}).out;
  folder_->write("prompt.txt", "the other\n");
  EXPECT_EQ(run({"-f", file("prompt.txt"), "-n", "8", "--temp", "0", "-q"}).out, wanted);
  EXPECT_EQ(run({"-n", "8", "--temp", "0", "-q"}, {.stdin_from = file("prompt.txt")}).out, wanted);
  EXPECT_EQ(run({"-n", "1", "-q"}).exit_code, 0);  // nothing at all: from the start of a text
}

TEST_F(Run, SeedsRepeat) {
  const auto drawn = [&](const char* seed) {
    return expect_json(run({"-p", "the", "-n", "20", "--seed", seed, "--temp", "2", "--json"})).at("ids");
  };
  EXPECT_EQ(drawn("5"), drawn("5"));
  EXPECT_NE(drawn("5"), drawn("6"));
}

TEST_F(Run, JsonTellsAll) {
  const nlohmann::json object =
      expect_json(run({"-p", "the", "-n", "3", "--temp", "0", "--ignore-eos", "--json", "--logprobs", "2"}));
  EXPECT_EQ(object.at("ids").size(), 3u);
  EXPECT_EQ(object.at("end"), "max_tokens");
  EXPECT_EQ(object.at("generated_tokens"), 3);
  ASSERT_EQ(object.at("logprobs").size(), 3u);
  EXPECT_EQ(object.at("logprobs")[0].at("id"), object.at("ids")[0]);
  EXPECT_EQ(object.at("logprobs")[0].at("top").size(), 2u);
  EXPECT_LE(object.at("logprobs")[0].at("logprob").get<double>(), 0);
  expect_error(run({"-p", "the", "--logprobs", "2"}), 2, "--logprobs needs --json");
}

TEST_F(Run, TheEndOfTheContextIsSaid) {
  const ProcessResult result = run({"-p", "the", "-n", "50", "-c", "8", "--temp", "0", "--ignore-eos"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.err.find("the context of 8 tokens is full"), std::string::npos) << result.err;
  EXPECT_EQ(expect_json(run({"-p", "the", "-n", "50", "-c", "8", "--ignore-eos", "--json"})).at("end"), "context_full");
  expect_error(run({"-p", "a b c d e f", "-c", "4"}), 2, "the context has room for 4");
}

TEST_F(Run, BiasAndStopStringsAreObeyed) {
  const nlohmann::json forced =
      expect_json(run({"-p", "the", "-n", "4", "--temp", "0", "--logit-bias", "256=1000", "--json"}));
  EXPECT_EQ(forced.at("text"), "thththth");  // token 256 of synth is "th"
  const nlohmann::json stopped =
      expect_json(run({"-p", "x", "-n", "4", "--temp", "0", "--logit-bias", "256=1000", "--stop", "ht", "--json"}));
  EXPECT_EQ(stopped.at("text"), "t");
  EXPECT_EQ(stopped.at("end"), "stop_string");
  EXPECT_EQ(run({"-p", "x", "-n", "4", "--temp", "0", "--logit-bias", "256+1000", "-r", "ht", "-q"}).out, "t\n");
}

TEST_F(Run, APromptCacheChangesNothingButTheTime) {
  const std::vector<std::string> words = {
      "-p", "the other thing", "-n", "6", "--temp", "0", "-q", "--prompt-cache", file("prompt.cache")};
  const std::string wanted = run({"-p", "the other thing", "-n", "6", "--temp", "0", "-q", "-c", "128"}).out;
  EXPECT_EQ(run(words).out, wanted);
  EXPECT_TRUE(std::filesystem::exists(file("prompt.cache")));
  EXPECT_EQ(run(words).out, wanted);
  EXPECT_EQ(run({"-p", "the other way", "-n", "6", "--temp", "0", "-q", "--prompt-cache", file("prompt.cache")}).out,
            run({"-p", "the other way", "-n", "6", "--temp", "0", "-q", "-c", "128"}).out);
  folder_->write("bad.cache", "imagoseq, but no more");
  expect_error(run({"-p", "a b", "-n", "1", "--prompt-cache", file("bad.cache")}), 1, "bad.cache");
}

TEST_F(Run, MistakesAreNamed) {
  expect_error(run({"-p", "a", "--temp", "nan"}), 2, "temperature");
  expect_error(run({"-p", "a", "--temp", "-1"}), 2, "temperature is -1");
  expect_error(run({"-p", "a", "--top-p", "2"}), 2, "top_p is 2");
  expect_error(run({"-p", "a", "--top-k", "-5"}), 2, "top_k is -5");
  expect_error(run({"-p", "a", "--repeat-penalty", "nan"}), 2, "repeat_penalty");
  for (const char* seed : {"36893488147419103232", "-1", "1.5", "x", ""}) {
    expect_error(run({"-p", "a", "--seed", seed}), 2, "--seed");
  }
  expect_error(run({"-p", "a", "--stop", ""}), 2, "a stop string is empty");
  expect_error(run({"-p", "a", "-n", "-2"}), 2, "--predict");
  expect_error(run({"-p", "a", "--logprobs", "1000000", "--json"}), 2, "--logprobs");
  expect_error(run({"-p", "a", "--logit-bias", "x"}), 2, "--logit-bias 'x' is not ID=NUMBER");
  expect_error(run({"-p", "a", "--logit-bias", "999999=1"}), 2, "token 999999 is outside");
  expect_error(run({"-p", "a", "--cache-type", "q3"}), 2, "--cache-type is 'q3'");
  expect_error(run({"-p", "a", "-f", "b"}), 2, "--");
  expect_error(imago_run({"run", "absent.gguf", "-p", "a"}), 1, "absent.gguf");
  const ProcessResult named =
      imago_run({"run", "-p", "the", "-n", "1", "-q"}, {.environment = {{"IMAGO_MODEL", file("tiny.gguf")}}});
  EXPECT_EQ(named.exit_code, 0) << named.err;
}

TEST_F(Run, OtherTypesAndCachesRun) {
  for (const char* cache : {"f32", "f16", "q8_0"}) {
    EXPECT_EQ(run({"-p", "the", "-n", "2", "--cache-type", cache, "-q"}).exit_code, 0) << cache;
  }
  EXPECT_EQ(expect_json(run({"-p", "the", "-n", "2", "--type", "q8_0", "--exact", "--json"})).at("type"), "q8_0");
}

TEST_F(Run, ChatAnswersEachLine) {
  const ProcessResult result = chat("hello\n\n/system Be brief.\nand you?\n/regen\n/stats\n/exit\nnever read\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_GE(std::count(result.out.begin(), result.out.end(), '\n'), 3);
  EXPECT_NE(result.err.find("no chat template"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("messages: 5"), std::string::npos) << result.err;
}

TEST_F(Run, ChatSavesAndLoads) {
  EXPECT_EQ(chat("hello\n/save " + file("talk.json") + "\n").exit_code, 0);
  nlohmann::json saved;
  std::ifstream(file("talk.json")) >> saved;
  ASSERT_EQ(saved.at("messages").size(), 2u);
  EXPECT_EQ(saved["messages"][0], (nlohmann::json{{"role", "user"}, {"content", "hello"}}));
  const ProcessResult loaded = chat("/load " + file("talk.json") + "\n/stats\n");
  EXPECT_NE(loaded.err.find("messages: 2"), std::string::npos) << loaded.err;
  folder_->write("bad.json", R"({"messages": [{"role": 3}]})");
  EXPECT_EQ(chat("/load " + file("bad.json") + "\n").exit_code, 1);
  EXPECT_EQ(chat("/load " + file("absent.json") + "\n").exit_code, 1);
}

TEST_F(Run, ChatThatDoesNotFitSaysSo) {
  const ProcessResult result = chat("a message that is far too long for so small a context\n", {"-c", "16"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.err.find("/clear starts over"), std::string::npos) << result.err;
  EXPECT_NE(chat("/frobnicate\n").err.find("unknown command '/frobnicate'"), std::string::npos);
}

TEST_F(Run, AContextBeyondTheModelsIsWarnedOfAndQuietIsQuiet) {
  const std::vector<std::string> words = {"-p", "the", "-n", "1", "--temp", "0", "-c", "129"};
  const std::string warning = "the context has 129 tokens, but the model was trained for 128";
  EXPECT_NE(run(words).err.find(warning), std::string::npos);
  EXPECT_EQ(run({"-p", "the", "-n", "1", "-c", "128"}).err.find("warning"), std::string::npos);
  EXPECT_NE(chat("hello\n", {"-c", "129"}).err.find(warning), std::string::npos);
  folder_->write("text", std::string(400, 'x'));
  const std::vector<std::string> eval = {"eval", file("tiny.gguf"), "--text", file("text"), "--ctx", "129", "-t", "1"};
  EXPECT_NE(imago_run(eval).err.find(warning), std::string::npos);
  EXPECT_EQ(run({"-p", "the", "-n", "200", "-c", "129", "--temp", "0", "--ignore-eos", "-q"}).err, "");
  EXPECT_EQ(chat("hello\n", {"-c", "129", "-q"}).err, "");
  // "User: hello\nAssistant:" are 22 tokens of these.
  EXPECT_NE(chat("hello\n", {"-c", "24", "--ignore-eos"}).err.find("24 tokens is full"), std::string::npos);
  EXPECT_EQ(chat("hello\n", {"-c", "24", "--ignore-eos", "-q"}).err, "");
}

TEST_F(Run, ChatMorphsTheModelAndGoesOn) {
  const ProcessResult result = chat("hello\n/types\n/morph ffn q4_0\n/types\nagain\n/undo\n/types\n/stats\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("messages: 4"), std::string::npos) << result.err;
  std::vector<std::string> sizes, listings;
  std::istringstream lines(result.err);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("size: ")) sizes.push_back(line.substr(6));
    if (line.starts_with("down ")) listings.push_back(line);
    if (line.starts_with("generation: ")) {
      EXPECT_NE(line.find(" tokens/s"), std::string::npos) << line;
    }
  }
  ASSERT_EQ(sizes.size(), 2u) << result.err;
  const auto before_and_after = [](const std::string& size) {
    const std::size_t arrow = size.find(" -> ");
    return std::pair(size.substr(0, arrow), size.substr(arrow + 4));
  };
  const auto [before, after] = before_and_after(sizes[0]);
  EXPECT_NE(before, after);
  EXPECT_EQ(before_and_after(sizes[1]), std::pair(after, before));
  ASSERT_EQ(listings.size(), 3u) << result.err;
  EXPECT_NE(listings[1].find("q4_0"), std::string::npos) << listings[1];
  EXPECT_EQ(listings[0].find("q4_0"), std::string::npos) << listings[0];
  EXPECT_EQ(listings[0], listings[2]);
  // A script must see the failure.
  for (const auto& [line, problem] :
       std::vector<std::pair<std::string, std::string>>{{"/morph fnn q4_0", "no matrix matches 'fnn'"},
                                                        {"/morph ( q4_0", "is not a regular expression"},
                                                        {"/morph ffn q9_9", "'q9_9'"},
                                                        {"/morph ffn", "/morph needs a pattern and a type"},
                                                        {"/morph", "/morph needs a pattern and a type"},
                                                        {"/undo", "there is nothing to undo"}}) {
    const ProcessResult refused = chat(line + "\n");
    EXPECT_EQ(refused.exit_code, 1) << line;
    EXPECT_NE(refused.err.find(problem), std::string::npos) << refused.err;
  }
}

TEST_F(Run, ChatAtATerminalGoesOnAfterAnUnknownType) {
  Terminal terminal({IMAGO_PROGRAM, "chat", file("tiny.gguf"), "-t", "1", "--temp", "0", "-n", "4"});
  ASSERT_TRUE(terminal.shows("> ")) << terminal.shown();
  terminal.type("/morph ffn q9_9\n");
  EXPECT_TRUE(terminal.shows("imago: error: unknown")) << terminal.shown();
  terminal.type("/morph fnn q4_0\n");
  EXPECT_TRUE(terminal.shows("no matrix matches 'fnn'")) << terminal.shown();
  terminal.type("/morph ffn q4_0\n");
  EXPECT_TRUE(terminal.shows(" tokens/s")) << terminal.shown();
  terminal.type("/exit\n");
  EXPECT_EQ(terminal.end(), 0) << terminal.shown();
}

TEST_F(Run, SpecialTokensAreShownOnRequest) {
  const std::vector<std::string> words = {"-p",           "x",  "-n",     "2", "--logit-bias", "258=1000",
                                          "--ignore-eos", "-q", "--temp", "0"};
  EXPECT_EQ(run(words).out, "\n");
  std::vector<std::string> special = words;
  special.push_back("--special");
  EXPECT_EQ(run(special).out, "<|endoftext|><|endoftext|>\n");
}

TEST_F(Run, ChatFollowsTheTemplateAndEvaluatesOnlyWhatIsNew) {
  ASSERT_EQ(imago_run({"convert", file("tiny.gguf"), file("talking/"), "-q"}).exit_code, 0);
  nlohmann::json config;
  std::ifstream(file("talking/tokenizer_config.json")) >> config;
  const auto talk = [&](const std::string& source, const std::string& lines) {
    config["chat_template"] = source;
    folder_->write("talking/tokenizer_config.json", config.dump());
    folder_->write("lines.txt", lines);
    return imago_run({"chat", file("talking"), "-t", "1", "--temp", "0", "-n", "4", "--logit-bias", "256=1000"},
                     {.stdin_from = file("lines.txt")});
  };
  // Every byte is a token here: "<U>abc<A>" are 9, the answer "thththth" 4, of which the last is evaluated with what
  // follows.
  const std::string source =
      "{% for m in messages %}{{ '<U>' if m.role == 'user' else '<A>' }}{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}<A>{% endif %}";
  const ProcessResult result = talk(source, "abc\n/stats\ndef\n/stats\n/regen\n/stats\n/clear\nabd\n/stats\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "thththth\nthththth\nthththth\nthththth\n");
  std::size_t at = 0;
  for (const char* stats : {"context: 13 of 128 tokens\nlast prompt: 9 tokens",     // all of it
                            "context: 26 of 128 tokens\nlast prompt: 10 tokens",    // "th", and "<U>def<A>"
                            "context: 26 of 128 tokens\nlast prompt: 1 tokens",     // the last one, for its logits
                            "context: 13 of 128 tokens\nlast prompt: 4 tokens"}) {  // "d<A>" after "<U>ab"
    at = result.err.find(stats, at);
    ASSERT_NE(at, std::string::npos) << stats << "\n" << result.err;
  }
  const ProcessResult refused = talk("{{ raise_exception('only systems speak') }}", "abc\n");
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("only systems speak"), std::string::npos) << refused.err;
  EXPECT_NE(talk("{% for %}", "abc\n").err.find("written as"), std::string::npos);
}

TEST_F(Run, CtrlCEndsTheAnswerAndTwiceTheProgram) {
  const std::string model = file("endless.gguf");
  ASSERT_EQ(imago_run({"synth", model, "--type", "f32", "--width", "64", "--blocks", "1", "--feed-forward", "64",
                       "--heads", "2", "--kv-heads", "2", "--vocabulary", "512", "--ctx", "1000000", "-q"})
                .exit_code,
            0);
  Terminal terminal(
      {IMAGO_PROGRAM, "chat", model, "-t", "1", "-c", "1000000", "--temp", "0", "--logit-bias", "256=1000"});
  ASSERT_TRUE(terminal.shows("> ")) << terminal.shown();
  terminal.type("hello\n");
  ASSERT_TRUE(terminal.shows("ththth")) << terminal.shown();
  terminal.type(kCtrlC);
  ASSERT_TRUE(terminal.shows("\n> ")) << terminal.shown();
  terminal.type("/stats\n");
  EXPECT_TRUE(terminal.shows("messages: 2")) << terminal.shown();
  terminal.type("half a line");
  terminal.type(kCtrlC);
  EXPECT_TRUE(terminal.shows("press Ctrl-C again or type /exit to end")) << terminal.shown();
  terminal.type("/frobnicate\n");
  EXPECT_TRUE(terminal.shows("unknown command '/frobnicate'")) << terminal.shown();  // and goes on
  // Pressed while a command still writes to a terminal that was halted, it counts too and nothing is lost. Should the
  // pause be too short for the command to begin, Ctrl-C drops it and there is less to see, but no mistake.
  terminal.type(kCtrlS);
  terminal.type("/stats\n");
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  terminal.type(kCtrlC);
  EXPECT_TRUE(terminal.shows("press Ctrl-C again")) << terminal.shown();
  terminal.type(kCtrlC);
  EXPECT_EQ(terminal.end(), 0) << terminal.shown();
}

TEST_F(Run, CtrlCStopsTheReadingOfALongMessage) {
  const std::string model = file("reader.gguf");
  ASSERT_EQ(imago_run({"synth", model, "--type", "f32", "--width", "64", "--blocks", "1", "--feed-forward", "64",
                       "--heads", "2", "--kv-heads", "2", "--vocabulary", "512", "--ctx", "1000000", "-q"})
                .exit_code,
            0);
  Terminal terminal({IMAGO_PROGRAM, "chat", model, "-t", "1", "-c", "1000000", "--temp", "0", "-n", "1"});
  ASSERT_TRUE(terminal.shows("> ")) << terminal.shown();
  // A megabyte of tokens takes far longer to read than a key takes to arrive; it comes from a file, since a terminal
  // takes only so long a line.
  folder_->write("long.json", R"({"messages":[{"role":"system","content":")" + std::string(900000, 'x') + R"("}]})");
  terminal.type("/load " + file("long.json") + "\n");
  ASSERT_TRUE(terminal.shows("\n> ")) << terminal.shown();
  terminal.type("hello\n");
  ASSERT_TRUE(terminal.shows("reading")) << terminal.shown();
  terminal.type(kCtrlC);
  ASSERT_TRUE(terminal.shows("the conversation is unchanged")) << terminal.shown();
  terminal.type("/stats\n");
  EXPECT_TRUE(terminal.shows("messages: 1")) << terminal.shown();
  terminal.type("/exit\n");
  EXPECT_EQ(terminal.end(), 0) << terminal.shown();
}

TEST_F(Run, TextOfAModelCannotSteerATerminal) {
  for (const char* id : {"27", "127", "7"}) {  // ESC, DEL, BEL
    const std::vector<std::string> words = {
        "-p", "x", "-n", "3", "--temp", "0", "--logit-bias", id + std::string("=1000"), "-q"};
    const auto raw = static_cast<char>(std::stoi(id));
    EXPECT_EQ(run(words).out, std::string(3, raw) + "\n");  // a file gets what there is
    std::vector<std::string> command = {IMAGO_PROGRAM, "run", file("tiny.gguf"), "-t", "1"};
    command.insert(command.end(), words.begin(), words.end());
    Terminal terminal(command);
    EXPECT_EQ(terminal.end(), 0);
    EXPECT_EQ(terminal.shown(), "\r\n");
  }
}

TEST(RunTrained, GreedyTextIsThatOfTransformers) {
  const std::filesystem::path folder = reference_folder() / "lm";
  if (!std::filesystem::exists(folder / "config.json")) GTEST_SKIP() << missing_reference("lm");
  nlohmann::json reference;
  std::ifstream(folder / "reference.json") >> reference;
  const std::string prompt = "The French destroyer";
  const nlohmann::json object = expect_json(imago_run({"run", folder.string(), "-p", prompt, "-n", "48", "--temp", "0",
                                                       "--exact", "--cache-type", "f32", "--ignore-eos", "--json"}));
  nlohmann::json whole = reference.at(prompt).at("ids");  // the reference has the prompt in front
  whole.insert(whole.end(), object.at("ids").begin(), object.at("ids").end());
  EXPECT_EQ(whole, reference.at(prompt).at("greedy"));
}

}  // namespace
}  // namespace imago::testing
