#include <fstream>

#include "imago.h"
#include "testing/temp_dir.h"

namespace imago::testing {
namespace {

using Json = nlohmann::json;

class Tokenize : public ::testing::Test {
 protected:
  Tokenize() {
    // "ab" and its letters, a line end, and a special token that comes first.
    std::ofstream(file("tokenizer.json")) << R"({"added_tokens":[{"id":4,"content":"<s>","special":true}],
              "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},
              "post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},
                                                                      {"Sequence":{"id":"A","type_id":0}}]},
              "model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"Ċ":3,"<":5,"s":6,">":7},"merges":["a b"]}})";
  }
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }
  Json ids(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"tokenize", file("tokenizer.json"), "--json"});
    return expect_json(imago_run(arguments));
  }
  TempDir folder_;
};

TEST_F(Tokenize, GivesIdsAndTokens) {
  const Json report = ids({"--text", "abba"});
  EXPECT_EQ(report, (Json{{"ids", {2, 1, 0}}, {"tokens", {"ab", "b", "a"}}}));
  EXPECT_EQ(ids({"--text", ""}), (Json{{"ids", Json::array()}, {"tokens", Json::array()}}));
  const ProcessResult text = imago_run({"tokenize", folder_.path().string(), "--text", "abba"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.out.find("3 tokens, 4 bytes"), std::string::npos) << text.out;
}

TEST_F(Tokenize, FilesAreTakenByteForByte) {
  std::ofstream(file("a.txt")) << "ab\n";
  EXPECT_EQ(ids({"--file", file("a.txt")}).at("ids"), (Json{2, 3}));
  EXPECT_EQ(ids({"--file", file("a.txt")}).at("tokens"), (Json{"ab", "Ċ"}));
  std::ofstream(file("empty.txt")).flush();
  EXPECT_EQ(ids({"--file", file("empty.txt")}).at("ids"), Json::array());
}

TEST_F(Tokenize, SpecialTokensAreReadOnRequest) {
  EXPECT_EQ(ids({"--text", "<s>a"}).at("ids"), (Json{5, 6, 7, 0}));
  EXPECT_EQ(ids({"--text", "<s>a", "--special"}).at("ids"), (Json{4, 4, 0}));
}

TEST_F(Tokenize, SaysWhatIsWrong) {
  expect_error(imago_run({"tokenize", file("tokenizer.json")}), 2, "either --text or --file");
  expect_error(imago_run({"tokenize", file("tokenizer.json"), "--text", "a", "--file", "b"}), 2,
               "either --text or --file");
  expect_error(imago_run({"tokenize", file("none.gguf"), "--text", "a"}), 1, "none.gguf");
  expect_error(imago_run({"tokenize", file("tokenizer.json"), "--file", file("none.txt")}), 1, "none.txt");
  expect_error(imago_run({"tokenize", file("tokenizer.json"), "--file", folder_.path().string()}), 1,
               "is a folder, not a file");
}

}  // namespace
}  // namespace imago::testing
