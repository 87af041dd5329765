#include "lm/word_splitter.h"

#include <gtest/gtest.h>

#include <set>

#include "imago/error.h"
#include "models/vocabulary.h"

namespace imago::lm {
namespace {

using Words = std::vector<std::string>;

Words split(const WordSplitter& splitter, std::string_view text) {
  Words words;
  splitter.split(text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

Words split(std::string_view name, std::string_view text) {
  return split(WordSplitter(*models::pre_tokenizer_patterns(name)), text);
}

TEST(WordSplitter, CutsAsTheNamedPreTokenizersDo) {
  EXPECT_EQ(split("gpt-2", "I'll  go, 1234!\n\nOK"),
            (Words{"I", "'ll", " ", " go", ",", " 1234", "!", "\n", "\n", "OK"}));
  EXPECT_EQ(split("gpt-2", "end  "), (Words{"end", "  "}));
  EXPECT_EQ(split("starcoder", "a 12b"), (Words{"a", " ", "1", "2", "b"}));
  EXPECT_EQ(split("llama-bpe", "I'LL go 1234567 (ok)\r\n\n x"),
            (Words{"I", "'LL", " go", " ", "123", "456", "7", " (", "ok", ")\r\n\n", " x"}));
  EXPECT_EQ(split("qwen2", "ab12"), (Words{"ab", "1", "2"}));
  EXPECT_EQ(split("falcon", "a--b 12345"), (Words{"a", "--", "b", " ", "123", "45"}));
  EXPECT_EQ(split("deepseek-llm", "a\n\nb \xe4\xbd\xa0\xe5\xa5\xbd 12  "),
            (Words{"a", "\n", "\n", "b", " ", "\xe4\xbd\xa0\xe5\xa5\xbd", " ", "12", "  "}));
  EXPECT_EQ(split("deepseek-v3", "x12345"), (Words{"x", "123", "45"}));
  EXPECT_EQ(split("gpt-4o", "HelloWORLD's iPhone/\n"), (Words{"Hello", "WORLD's", " i", "Phone", "/\n"}));
  EXPECT_EQ(split("bloom", "Hi, you"), (Words{"Hi", ",", " you"}));
  EXPECT_EQ(split("jais-2", ".\n  \n    x"), (Words{".\n", "  \n", "  ", " ", " x"}));
  const Words chunks = split("jais-2", "a" + std::string(1300, ' '));
  ASSERT_EQ(chunks.size(), 6u);  // 512 + 512 + 256 + 16 + 4 of 1300
  EXPECT_EQ(chunks[1].size(), 512u);
  EXPECT_EQ(chunks[3].size(), 256u);
}

TEST(WordSplitter, GroupsDigitsFromTheRight) {
  EXPECT_EQ(split("tiny_aya", "1234567"), (Words{"1", "234", "567"}));
  EXPECT_EQ(split("tiny_aya", "12345678 x"), (Words{"12", "345", "678", " x"}));
  EXPECT_EQ(split("superbpe", "a1234"), (Words{"a", "1", "234"}));
  EXPECT_EQ(split("superbpe", "123456"), (Words{"123", "456"}));
  EXPECT_EQ(split("superbpe", "12"), (Words{"12"}));
}

TEST(WordSplitter, NoWordsAreLostAndTimeIsLinear) {  // threat 71
  std::set<const std::vector<std::string>*> seen;
  const std::size_t size = std::size_t{1} << 17;
  std::string mixed;
  while (mixed.size() < size) mixed += "aB\xcc\x81\xe4\xbd\xa0 1' \n";
  const auto repeated = [&](std::string_view unit, std::string_view end) {
    std::string text;
    while (text.size() < size) text += unit;
    return text.append(end);
  };
  const std::vector<std::string> texts = {repeated("a", ""),  repeated("A", ""),        repeated("7", ""),
                                          repeated(" ", "x"), repeated("\n ", "x"),     repeated(".", ""),
                                          repeated("a ", ""), repeated("\xcc\x81", ""), mixed};
  for (const std::string_view name : models::pre_tokenizer_names()) {
    const std::vector<std::string>* patterns = models::pre_tokenizer_patterns(name);
    if (!seen.insert(patterns).second) continue;
    const WordSplitter splitter(*patterns);
    for (const std::string& text : texts) {
      std::size_t bytes = 0;
      splitter.split(text, [&](std::string_view word) { bytes += word.size(); });
      EXPECT_EQ(bytes, text.size()) << name;
    }
  }
  EXPECT_GT(seen.size(), 20u);
}

TEST(WordSplitter, RefusesWhatIsNoExpressionAndWhatTakesTooLong) {
  const auto problem = [](const std::string& pattern, const std::string& text) -> std::string {
    try {
      split(WordSplitter({pattern}), text);
    } catch (const UnsupportedError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(problem("(a", "a").find("expression '(a' cannot be used: missing closing parenthesis"), std::string::npos)
      << problem("(a", "a");
  EXPECT_NE(problem("(?:(?:a+)+)+[bc]", std::string(100, 'a')).find("gives up on a piece of 100 bytes"),
            std::string::npos)
      << problem("(?:(?:a+)+)+[bc]", std::string(100, 'a'));
}

TEST(WordSplitter, EmptyMatchesCut) {
  EXPECT_EQ(split(WordSplitter({"(?=b)"}), "abab"), (Words{"a", "ba", "b"}));
  EXPECT_EQ(split(WordSplitter({"x*"}), "a\xc3\xa9"), (Words{"a", "\xc3\xa9"}));
  EXPECT_EQ(split(WordSplitter({}), "a b"), (Words{"a b"}));
}

}  // namespace
}  // namespace imago::lm
