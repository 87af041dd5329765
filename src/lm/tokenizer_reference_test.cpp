// Tokenizers of published models beside the ids that their own programs give. Their files are not part of the
// repository: without reference data these tests are skipped.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "files/hugging_face.h"
#include "imago/files.h"
#include "lm/tokenizer.h"
#include "testing/random_text.h"
#include "testing/reference.h"
#include "testing/temp_dir.h"

namespace imago {
namespace {

/// The tokenizer of the model in reference/lm.
const std::filesystem::path kTrained = std::filesystem::path(IMAGO_TEST_DATA) / "lm";

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

#define SKIP_WITHOUT(path) \
  if (!std::filesystem::exists(path)) GTEST_SKIP() << testing::missing_reference("vocab")

std::filesystem::path vocab(const std::string& name) {
  return testing::reference_folder() / "vocab" / ("ggml-vocab-" + name + ".gguf");
}

struct Sample {
  std::string text;
  std::vector<TokenId> ids;
};

/// Texts between lines of `__ggml_vocab_test__`, ids one line each.
std::vector<Sample> samples_of(const std::filesystem::path& model) {
  std::string texts = read(model.string() + ".inp");
  std::istringstream ids(read(model.string() + ".out"));
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::vector<Sample> samples;
  for (std::string line; std::getline(ids, line);) {
    const std::size_t end = texts.find(separator);
    Sample sample{texts.substr(0, end), {}};
    std::istringstream numbers(line);
    for (TokenId id = 0; numbers >> id;) sample.ids.push_back(id);
    samples.push_back(sample);
    texts.erase(0, end == std::string::npos ? texts.size() : end + separator.size());
  }
  return samples;
}

class Published : public ::testing::TestWithParam<const char*> {};

TEST_P(Published, TextsHaveTheIdsOfTheOriginal) {
  SKIP_WITHOUT(vocab(GetParam()));
  const Tokenizer tokenizer = Tokenizer::load(vocab(GetParam()));
  const std::vector<Sample> samples = samples_of(vocab(GetParam()));
  ASSERT_GT(samples.size(), 40u);
  for (const Sample& sample : samples) {
    EXPECT_EQ(tokenizer.encode(sample.text), sample.ids) << sample.text;
    EXPECT_EQ(tokenizer.decode(sample.ids), sample.text);
  }
}

TEST_P(Published, RandomUnicodeComesBack) {
  SKIP_WITHOUT(vocab(GetParam()));
  const Tokenizer tokenizer = Tokenizer::load(vocab(GetParam()));
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = testing::random_text(random, 40);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST_P(Published, PiecesMakeTheText) {
  SKIP_WITHOUT(vocab(GetParam()));
  const Tokenizer tokenizer = Tokenizer::load(vocab(GetParam()));
  const std::string text =
      "Stra\xc3\x9f"
      "e \xf0\x9f\x98\x80\xe6\x97\xa5 1 2\n";
  Utf8Stream stream;
  std::string joined;
  for (const TokenId id : tokenizer.encode(text)) joined += stream.push(tokenizer.piece(id));
  joined += stream.finish();
  EXPECT_EQ(std::string(GetParam()) == "llama-spm" ? joined.substr(1) : joined, text);
}

/// tokenizer.json of it, and the GGUF keys of that, encode as the file itself does.
TEST_P(Published, SurvivesBothForms) {
  SKIP_WITHOUT(vocab(GetParam()));
  const models::Vocabulary direct = models::read_vocabulary(GgufFile::open(vocab(GetParam())));
  const models::TokenizerFiles files = models::hugging_face_vocabulary(direct);
  const models::Vocabulary from_json =
      models::read_vocabulary(files::JsonFile::parse(files.tokenizer, "tokenizer.json"));
  EXPECT_EQ(from_json.kind, direct.kind);
  EXPECT_EQ(from_json.pre_tokenizer, direct.pre_tokenizer);
  EXPECT_EQ(from_json.add_bos, direct.add_bos);
  EXPECT_EQ(from_json.tokens.size(), direct.tokens.size());
  const testing::TempDir folder;
  const std::string path = folder.path() / "again.gguf";
  GgufWriter(path, models::gguf_vocabulary(from_json), {}).commit();
  const Tokenizer original = TokenizerMaker::make(direct), json = TokenizerMaker::make(from_json),
                  again = Tokenizer::load(path);
  std::mt19937 random(11);
  std::vector<std::string> texts;
  for (const Sample& sample : samples_of(vocab(GetParam()))) texts.push_back(sample.text);
  for (int i = 0; i < 300; ++i) texts.push_back(testing::random_text(random, 60));
  if (const auto text = testing::find_reference("text/eval.txt")) texts.push_back(read(*text));
  for (const std::string& text : texts) {
    const std::vector<TokenId> ids = original.encode(text, true);
    EXPECT_EQ(json.encode(text, true), ids) << text.substr(0, 100);
    EXPECT_EQ(again.encode(text, true), ids) << text.substr(0, 100);
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, Published, ::testing::Values("gpt-2", "falcon", "deepseek-llm", "llama-spm"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(TokenizerReference, TheTrainedModelAgreesWithTransformers) {
  const Tokenizer tokenizer = Tokenizer::load(kTrained);
  const nlohmann::json samples = nlohmann::json::parse(read(kTrained / "reference.json")).at("tokenizer");
  ASSERT_GT(samples.size(), 10u);
  for (const nlohmann::json& sample : samples) {
    const auto text = sample.at("text").get<std::string>();
    const auto ids = sample.at("ids").get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer.encode(text, true), ids) << text;
    EXPECT_EQ(tokenizer.decode(ids), sample.at("decoded").get<std::string>());
  }
  EXPECT_EQ(tokenizer.bos(), 0);
  EXPECT_EQ(tokenizer.eos(), 0);
  EXPECT_FALSE(tokenizer.adds_bos());
  EXPECT_TRUE(tokenizer.is_end(0));
}

TEST(TokenizerReference, TheTrainedModelSurvivesBothForms) {
  const models::Vocabulary direct = models::read_vocabulary_folder(kTrained);
  EXPECT_EQ(direct.pre_tokenizer, "gpt-2");
  const testing::TempDir folder;
  const std::string path = folder.path() / "again.gguf";
  GgufWriter(path, models::gguf_vocabulary(direct), {}).commit();
  const models::Vocabulary from_gguf = models::read_vocabulary(GgufFile::open(path));
  const models::TokenizerFiles files = models::hugging_face_vocabulary(from_gguf);
  const Tokenizer original = TokenizerMaker::make(direct), gguf = TokenizerMaker::make(from_gguf),
                  json = TokenizerMaker::make(models::read_vocabulary(files::JsonFile::parse(files.tokenizer, "t")));
  std::mt19937 random(3);
  for (int i = 0; i < 500; ++i) {
    const std::string text = testing::random_text(random, 60) + (i % 3 == 0 ? "<|endoftext|>" : "");
    for (const bool special : {false, true}) {
      const std::vector<TokenId> ids = original.encode(text, special);
      EXPECT_EQ(gguf.encode(text, special), ids);
      EXPECT_EQ(json.encode(text, special), ids);
    }
  }
}

}  // namespace
}  // namespace imago
