#include "models/vocabulary.h"

#include <gtest/gtest.h>

#include <fstream>

#include "imago/error.h"
#include "models/vocabulary_parts.h"
#include "testing/temp_dir.h"

namespace imago::models {
namespace {

using imago::testing::TempDir;

template <class T>
GgufArray array_of(std::initializer_list<T> values) {
  return GgufArray::of<T>(std::span<const T>(values.begin(), values.size()));
}

GgufArray strings(std::vector<std::string> values) { return GgufArray::of_strings(values); }

/// The keys of a small byte-level tokenizer; each test replaces what it wants to see wrong.
std::vector<GgufMetadata> small_gguf() {
  return {{"tokenizer.ggml.model", "gpt2"},
          {"tokenizer.ggml.pre", "gpt-2"},
          {"tokenizer.ggml.tokens", strings({"a", "b", "ab", "<end>"})},
          {"tokenizer.ggml.token_type", array_of<std::int32_t>({1, 1, 1, 3})},
          {"tokenizer.ggml.merges", strings({"a b"})},
          {"tokenizer.ggml.eos_token_id", std::uint32_t{3}}};
}

Vocabulary read_gguf(const std::vector<GgufMetadata>& metadata) {
  const TempDir folder;
  const std::string path = folder.path() / "v.gguf";
  GgufWriter(path, metadata, {}).commit();
  return read_vocabulary(GgufFile::open(path));
}

template <class Call>
std::string problem_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// Expects a FormatError with `words` when `key` has `value`.
void expect_gguf_problem(const std::string& key, std::optional<GgufValue> value, const std::string& words) {
  std::vector<GgufMetadata> metadata = small_gguf();
  std::erase_if(metadata, [&](const GgufMetadata& entry) { return entry.key == key; });
  if (value) metadata.push_back({key, *value});
  const std::string problem = problem_of([&] { read_gguf(metadata); });
  EXPECT_NE(problem.find(words), std::string::npos) << key << ": " << problem;
}

TEST(VocabularyGguf, IsReadAsItStands) {
  const Vocabulary vocabulary = read_gguf(small_gguf());
  EXPECT_EQ(vocabulary.kind, TokenizerKind::byte_bpe);
  EXPECT_EQ(vocabulary.pre_tokenizer, "gpt-2");
  ASSERT_EQ(vocabulary.tokens.size(), 4u);
  EXPECT_EQ(vocabulary.tokens[3].type, TokenType::control);
  EXPECT_EQ(vocabulary.merges, (std::vector<std::pair<std::string, std::string>>{{"a", "b"}}));
  EXPECT_EQ(vocabulary.eos, 3);
  EXPECT_EQ(vocabulary.bos, std::nullopt);
  EXPECT_EQ(vocabulary.ends, std::vector<std::int32_t>{3});
}

TEST(VocabularyGguf, WrongTokensAreNamed) {  // threats 66, 67
  const std::string tokens = "tokenizer.ggml.tokens";
  expect_gguf_problem(tokens, std::nullopt, "the metadata have no 'tokenizer.ggml.tokens'");
  expect_gguf_problem(tokens, strings({"a", "b", "ab", "a"}), "tokens 0 and 3 of 'tokenizer.ggml.tokens' are both 'a'");
  expect_gguf_problem(tokens, strings({"a", "b", "ab", std::string(70000, 'x')}),
                      "token 3 of 'tokenizer.ggml.tokens' has 70000 bytes: at most 65536 are allowed");
  expect_gguf_problem(tokens, strings({"a", "b", "ab", "x\xff"}),
                      "token 3 of 'tokenizer.ggml.tokens', 'x\\xff', is not UTF-8");
  expect_gguf_problem(tokens, array_of<float>({1, 2, 3, 4}), "'tokenizer.ggml.tokens' must be an array of string");
  const std::string types = "tokenizer.ggml.token_type";
  expect_gguf_problem(types, array_of<std::int32_t>({1, 1}),
                      "'tokenizer.ggml.token_type' has 2 elements, but there are 4 tokens");
  expect_gguf_problem(types, array_of<float>({1, 1, 1, 1}), "'tokenizer.ggml.token_type' must be an array of i32");
  expect_gguf_problem(types, array_of<std::int32_t>({1, 1, 9, 1}),
                      "'tokenizer.ggml.token_type' of token 2 is 9: it must be from 0 to 6");
  expect_gguf_problem("tokenizer.ggml.scores", array_of<float>({1}),
                      "'tokenizer.ggml.scores' has 1 elements, but there are 4 tokens");
  expect_gguf_problem("tokenizer.ggml.scores", array_of<double>({1, 1, 1, 1}),
                      "'tokenizer.ggml.scores' must be an array of f32");
  expect_gguf_problem("tokenizer.ggml.scores", array_of<float>({0, NAN, 0, 0}), "the score of token 1 'b' is nan");

  std::vector<GgufMetadata> empty = {{"tokenizer.ggml.model", "llama"}, {tokens, strings({})}};
  EXPECT_NE(problem_of([&] { read_gguf(empty); }).find("'tokenizer.ggml.tokens' is empty"), std::string::npos);
}

TEST(VocabularyGguf, WrongIdsAreNamed) {  // threat 68
  expect_gguf_problem("tokenizer.ggml.bos_token_id", std::uint32_t{4},
                      "'tokenizer.ggml.bos_token_id' is 4: it must be from 0 to 3");
  expect_gguf_problem("tokenizer.ggml.eos_token_id", std::int32_t{-1},
                      "'tokenizer.ggml.eos_token_id' is -1: it must be from 0 to 3");
  expect_gguf_problem("tokenizer.ggml.unknown_token_id", std::uint32_t{1000},
                      "'tokenizer.ggml.unknown_token_id' is 1000: it must be from 0 to 3");
  expect_gguf_problem("tokenizer.ggml.padding_token_id", "x", "must be an integer");
  expect_gguf_problem("tokenizer.ggml.add_bos_token", true, "asks for BOS in front of a text, but names no BOS token");
  // Defaults of SentencePiece that lie beyond a tiny vocabulary are not there.
  const Vocabulary tiny = read_gguf({{"tokenizer.ggml.model", "llama"}, {"tokenizer.ggml.tokens", strings({"<unk>"})}});
  EXPECT_EQ(tiny.bos, std::nullopt);
  EXPECT_EQ(tiny.eos, std::nullopt);
  EXPECT_EQ(tiny.unknown, 0);
  EXPECT_FALSE(tiny.add_bos);
}

TEST(VocabularyGguf, WrongMergesAreNamed) {  // threat 69
  const std::string merges = "tokenizer.ggml.merges";
  expect_gguf_problem(merges, std::nullopt, "the metadata have no 'tokenizer.ggml.merges'");
  for (const char* text : {"ab", "", "a ", " a"}) {
    expect_gguf_problem(merges, strings({text}), "merge 0 of 'tokenizer.ggml.merges' is not a pair of tokens");
  }
  expect_gguf_problem(merges, strings({"a c"}), "merge 0 of 'tokenizer.ggml.merges' needs 'c', which is not a token");
  expect_gguf_problem(merges, strings({"b a"}), "merge 0 of 'tokenizer.ggml.merges' needs 'ba', which is not a token");
  expect_gguf_problem(merges, strings({"a b", "a b"}), "merge 1 of 'tokenizer.ggml.merges', 'a' and 'b', comes twice");
}

TEST(VocabularyGguf, UnknownPreTokenizersAreAnsweredWithTheKnownOnes) {
  for (const char* name : {"gpt-2", "llama-bpe", "deepseek-llm", "deepseek-coder", "falcon", "starcoder", "refact",
                           "qwen2", "smollm", "gpt-4o", "tekken"}) {
    expect_gguf_problem("tokenizer.ggml.pre", "no-such-thing", name);
    EXPECT_NE(pre_tokenizer_patterns(name), nullptr) << name;
  }
  expect_gguf_problem("tokenizer.ggml.pre", "no-such-thing", "the pre-tokenizer 'no-such-thing'");
  EXPECT_EQ(pre_tokenizer_patterns("no-such-thing"), nullptr);
  expect_gguf_problem("tokenizer.ggml.model", "rwkv", "'tokenizer.ggml.model' is 'rwkv'; imago knows gpt2, llama");
}

TEST(CharacterMap, ReplacesAndRefuses) {  // threat 70
  // A trie with "A" in it: the root's children start at 256, that of "A" is 256 ^ 0x41, its value the unit beside it.
  std::vector<std::uint32_t> units(322, 0);
  units[0] = 256u << 10;
  units[321] = 0x41 | 1u << 8 | 1u << 10;
  units[320] = 1u << 31 | 2;
  const auto bytes_of = [](const std::vector<std::uint32_t>& trie, std::string_view rest, std::int64_t size = -1) {
    const auto count = static_cast<std::uint32_t>(size < 0 ? trie.size() * 4 : static_cast<std::size_t>(size));
    std::string bytes(reinterpret_cast<const char*>(&count), 4);
    bytes.append(reinterpret_cast<const char*>(trie.data()), trie.size() * 4);
    return bytes.append(rest);
  };
  const std::string_view rest("x\0yz\0", 5);
  const CharacterMap map = CharacterMap::parse(bytes_of(units, rest), "f", "the map");
  ASSERT_TRUE(map.longest("AB"));
  EXPECT_EQ(map.longest("AB")->length, 1u);
  EXPECT_EQ(map.longest("AB")->replacement, "yz");
  EXPECT_FALSE(map.longest("B"));
  EXPECT_FALSE(map.longest(""));

  const auto problem = [&](const std::string& bytes) {
    return problem_of([&] { CharacterMap::parse(bytes, "f", "the map"); });
  };
  const auto expect = [&](const std::string& bytes, const std::string& words) {
    EXPECT_NE(problem(bytes).find(words), std::string::npos) << problem(bytes);
  };
  expect("abc", "the map has 3 bytes: its size alone takes 4");
  expect(bytes_of(units, rest, 5000), "its trie has 5000 bytes, but only 1293 follow");
  expect(bytes_of(units, rest, 7), "its trie has 7 bytes: it must be a multiple of 4 above 0");
  expect(bytes_of(units, "xyz"), "the last replacement of the map is not ended by a zero byte");
  units[320] = 1u << 31 | 5;
  expect(bytes_of(units, rest), "the map has a replacement at 5, after the 5 bytes of replacements");
  units[0] = 0x1fffffu << 10;  // children beyond the trie
  units[320] = 0;
  EXPECT_FALSE(CharacterMap::parse(bytes_of(units, rest), "f", "the map").longest("A"));
}

// ---- tokenizer.json

std::string small_json(const std::string& model, const std::string& more = "") {
  return R"({"added_tokens":[{"id":3,"content":"<end>","special":true}],)" + more + R"("model":{"type":"BPE",)" +
         model + "}}";
}
const std::string kGoodModel = R"("vocab":{"a":0,"b":1,"ab":2},"merges":["a b"])";
const std::string kByteLevel = R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},)";

Vocabulary read_json(const std::string& text) {
  return read_vocabulary(files::JsonFile::parse(text, "tokenizer.json"));
}

void expect_json_problem(const std::string& text, const std::string& words) {
  const std::string problem = problem_of([&] { read_json(text); });
  EXPECT_NE(problem.find(words), std::string::npos) << problem;
}

TEST(VocabularyJson, IsReadAsItStands) {
  const Vocabulary vocabulary = read_json(small_json(kGoodModel, kByteLevel));
  EXPECT_EQ(vocabulary.kind, TokenizerKind::byte_bpe);
  EXPECT_EQ(vocabulary.pre_tokenizer, "gpt-2");
  ASSERT_EQ(vocabulary.tokens.size(), 4u);
  EXPECT_EQ(vocabulary.tokens[3].type, TokenType::control);
  EXPECT_EQ(vocabulary.merges, (std::vector<std::pair<std::string, std::string>>{{"a", "b"}}));
  EXPECT_FALSE(vocabulary.add_bos);
}

TEST(VocabularyJson, NamesThePreTokenizersOfPublishedModels) {
  const auto name_of = [](const std::string& steps, bool ignore_merges = false) {
    return read_json(small_json(kGoodModel + (ignore_merges ? R"(,"ignore_merges":true)" : ""),
                                R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[)" + steps +
                                    R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},)"))
        .pre_tokenizer;
  };
  const auto split = [](const std::string& regex) {
    return R"({"type":"Split","pattern":{"Regex":")" + regex + R"("},"behavior":"Isolated","invert":false},)";
  };
  // As the files of these models spell them.
  const std::string llama3 =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
  EXPECT_EQ(name_of(split(llama3), true), "llama-bpe");
  EXPECT_EQ(name_of(split(llama3)), "dbrx");
  const std::string qwen2 =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
  EXPECT_EQ(name_of(split(qwen2)), "qwen2");
  const std::string digits_then_gpt2 =
      R"({"type":"Digits","individual_digits":true},{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},)";
  EXPECT_EQ(name_of(digits_then_gpt2), "starcoder");
  EXPECT_EQ(name_of(split(R"([\r\n])") + split(R"(\\s?\\p{L}+)") + split(R"(\\s?\\p{P}+)") +
                    split("[一-龥ࠀ-一가-퟿]+") + R"({"type":"Digits","individual_digits":true},)"),
            "deepseek-coder");
  EXPECT_EQ(name_of(split("x+")), "");
}

TEST(VocabularyJson, WrongTokensAndMergesAreNamed) {  // threats 66, 68, 69
  expect_json_problem("{}", "there is no 'model'");
  expect_json_problem(R"({"model":{"type":"BPE"}})", "there is no 'vocab'");
  expect_json_problem(R"({"model":{"type":"BPE","vocab":{},"merges":[]},)" + kByteLevel + R"("x":0})",
                      "'model.vocab' is empty");
  for (const std::string_view empty : {R"("type":"BPE","vocab":{},"merges":[])", R"("type":"WordPiece","vocab":{})",
                                       R"("type":"Unigram","vocab":[])"}) {
    expect_json_problem(R"({"model":{)" + std::string(empty) + R"(},)" + kByteLevel +
                            R"("added_tokens":[{"id":0,"content":"<s>","special":true}]})",
                        "'model.vocab' is empty: a tokenizer needs tokens");
  }
  const auto model = [](const std::string& vocab, const std::string& merges) {
    return small_json(R"("vocab":)" + vocab + R"(,"merges":)" + merges, kByteLevel);
  };
  expect_json_problem(model(R"({"a":0,"b":0})", "[]"), "two tokens have the id 0");
  expect_json_problem(model(R"({"a":-1})", "[]"), "an id of vocab");
  expect_json_problem(model(R"({"a":1000000000})", "[]"), "an id of vocab");
  expect_json_problem(model(R"({"a":900000})", "[]"), "the id 900000 is far beyond the 2 tokens of the file");
  expect_json_problem(model(R"({"a":0,"b":3})", "[]"), "the added token has the id 3, which is that of another one");
  expect_json_problem(model(R"({"a":0,"<end>":1})", "[]"), "tokens 1 and 3 of 'model.vocab' are both '<end>'");
  expect_json_problem(model(R"({"a":0,"b":1})", R"(["ab"])"), "merge 0 is not a pair of tokens with a space between");
  expect_json_problem(model(R"({"a":0,"b":1})", R"([["a"]])"), "a merge must have two halves");
  expect_json_problem(model(R"({"a":0,"b":1})", R"(["a b"])"), "merge 0 of 'model.merges' needs 'ab'");
  expect_json_problem(model(R"({"a":0,"b":1,"ab":2})", R"(["a b",["a","b"]])"), "comes twice");
  expect_json_problem(small_json(kGoodModel + R"(,"unk_token":"?")", kByteLevel),
                      "the unknown token '?' is not in the vocabulary");
  const std::string template_of_nothing =
      R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}}]},)";
  expect_json_problem(small_json(kGoodModel, kByteLevel + template_of_nothing),
                      "the template names a token that is not in the vocabulary");
}

TEST(VocabularyJson, StepsThatImagoDoesNotTakeAreNamed) {
  expect_json_problem(R"({"model":{"type":"WordLevel","vocab":{"a":0}}})", "a tokenizer model of type 'WordLevel'");
  expect_json_problem(small_json(kGoodModel), "without ByteLevel, Metaspace or a Replace of spaces");
  expect_json_problem(small_json(kGoodModel, kByteLevel + R"("normalizer":{"type":"Nmt"},)"), "the normalizer 'Nmt'");
  expect_json_problem(
      small_json(kGoodModel, R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Whitespace"},
      {"type":"ByteLevel"}]},)"),
      "the pre-tokenizer 'Whitespace'");
  expect_json_problem(small_json(kGoodModel + R"(,"end_of_word_suffix":"</w>")", kByteLevel), "'end_of_word_suffix'");
  expect_json_problem(small_json(kGoodModel, kByteLevel + R"("post_processor":{"type":"Odd"},)"),
                      "the post-processor 'Odd'");
}

class Folder : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_.path() / name) << text; }
  Vocabulary read() { return read_vocabulary_folder(folder_.path()); }
  TempDir folder_;
};

TEST_F(Folder, ConfigurationsNameTokensEndsAndTemplates) {
  write("tokenizer.json",
        small_json(R"("vocab":{"a":0,"b":1,"ab":2,"<s>":4,"<|im_end|>":5},"merges":["a b"])", kByteLevel));
  write("tokenizer_config.json", R"({"bos_token":{"content":"<s>"},"eos_token":"<end>","pad_token":"none such",
      "add_bos_token":true,"chat_template":[{"name":"tool_use","template":"T"},{"name":"default","template":"D"}]})");
  write("generation_config.json", R"({"eos_token_id":[3,5]})");
  Vocabulary vocabulary = read();
  EXPECT_EQ(vocabulary.bos, 4);
  EXPECT_EQ(vocabulary.eos, 3);
  EXPECT_EQ(vocabulary.padding, std::nullopt);
  EXPECT_TRUE(vocabulary.add_bos);
  EXPECT_EQ(vocabulary.ends, (std::vector<std::int32_t>{3, 5}));
  EXPECT_EQ(vocabulary.chat_template, "D");
  write("chat_template.jinja", "J");
  EXPECT_EQ(read().chat_template, "J");
  write("generation_config.json", R"({"eos_token_id":6})");
  EXPECT_NE(problem_of([&] { read(); }).find("eos_token_id"), std::string::npos);
}

TEST_F(Folder, TheTemplateOfThePostProcessorDecidesAboutBos) {
  const std::string post = R"("post_processor":{"type":"Sequence","processors":[{"type":"ByteLevel"},
      {"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<end>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}]}]},)";
  write("tokenizer.json", small_json(kGoodModel, kByteLevel + post));
  EXPECT_TRUE(read().add_bos);
  EXPECT_EQ(read().bos, 3);
  EXPECT_FALSE(read().add_eos);
  write("tokenizer_config.json", R"({"add_bos_token":false,"bos_token":"a"})");
  EXPECT_TRUE(read().add_bos);
  EXPECT_EQ(read().bos, 3);
}

TEST_F(Folder, WithoutTokenizerItSaysSo) {
  EXPECT_NE(problem_of([&] { read(); }).find("there is no tokenizer.json"), std::string::npos);
}

TEST(Vocabulary, GgufKeysHoldWhatTokenizerJsonSays) {
  Vocabulary vocabulary =
      read_json(small_json(kGoodModel, R"("normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"Split",
      "pattern":{"String":"a.b"},"behavior":"Isolated"},"decoder":{"type":"ByteLevel"},)"));
  vocabulary.tokens[3].lstrip = vocabulary.tokens[3].single_word = true;
  vocabulary.chat_template = "{{ messages }}";
  vocabulary.bos = 3;
  EXPECT_EQ(vocabulary.patterns, std::vector<std::string>{R"(a\.b)"});
  for (const Vocabulary& again :
       {read_gguf(gguf_vocabulary(vocabulary)), read_json(hugging_face_vocabulary(vocabulary).tokenizer)}) {
    EXPECT_EQ(again.patterns, vocabulary.patterns);
    EXPECT_EQ(again.normal_forms, vocabulary.normal_forms);
    EXPECT_EQ(again.merges, vocabulary.merges);
    EXPECT_TRUE(again.tokens[3].lstrip && again.tokens[3].single_word && !again.tokens[3].rstrip);
    EXPECT_EQ(again.tokens[3].type, TokenType::control);
  }
  const Vocabulary again = read_gguf(gguf_vocabulary(vocabulary));
  EXPECT_EQ(again.chat_template, vocabulary.chat_template);
  EXPECT_EQ(again.bos, 3);
  EXPECT_FALSE(again.add_bos);
}

}  // namespace
}  // namespace imago::models
