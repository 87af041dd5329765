#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "imago/data.h"
#include "imago/error.h"
#include "testing/temp_dir.h"

namespace imago {
namespace {

TEST(Text, TheVocabularyIsSortedAndGoesBothWays) {
  const TextVocabulary vocabulary("hello, wörld €", TextUnit::character);
  EXPECT_EQ(vocabulary.size(), 11u);
  EXPECT_TRUE(std::ranges::is_sorted(vocabulary.tokens()));
  EXPECT_EQ(vocabulary.tokens().back(), "€");
  const std::vector<int> ids = vocabulary.encode("wo€ö");
  EXPECT_EQ(ids.size(), 4u);
  EXPECT_EQ(vocabulary.decode(ids), "wo€ö");
  EXPECT_THROW(vocabulary.encode("xyz"), UsageError);
  EXPECT_THROW(vocabulary.encode("ß"), UsageError);
  EXPECT_THROW(vocabulary.decode(std::vector<int>{11}), UsageError);
  EXPECT_THROW(vocabulary.decode(std::vector<int>{-1}), UsageError);
}

TEST(Text, BytesTakeAnything) {
  const std::string_view text("\xFF\x00\x80z", 4);
  const TextVocabulary vocabulary(text, TextUnit::byte);
  EXPECT_EQ(vocabulary.encode(text), (std::vector<int>{3, 0, 2, 1}));
  EXPECT_EQ(TextVocabulary("ö", TextUnit::byte).size(), 2u);
}

TEST(Text, CharactersMustBeUtf8) {
  for (const std::string_view bad : {"a\x80", "a\xC0\x80", "a\xC3", "a\xE0\x80\x80", "a\xED\xA0\x80",
                                     "a\xF4\x90\x80\x80", "a\xF5\x80\x80\x80", "a\xE2\x82"}) {
    try {
      TextVocabulary(bad, TextUnit::character);
      ADD_FAILURE() << "accepted";
    } catch (const FormatError& error) {
      EXPECT_EQ(error.offset(), 1u);
    }
  }
  EXPECT_EQ(TextVocabulary("\xF4\x8F\xBF\xBF\xED\x9F\xBF\xC2\x80", TextUnit::character).size(), 3u);
}

TEST(Text, TargetsAreTheNextTokens) {
  const TextDataset set = make_text_dataset("abcabca", {.context = 3});
  EXPECT_EQ(set.vocabulary.size(), 3u);
  EXPECT_EQ(set.data.x.shape(), Shape({2, 3}));
  EXPECT_EQ(set.data.y.shape(), Shape({2, 3}));
  const std::vector<float> x(set.data.x.values().begin(), set.data.x.values().end());
  const std::vector<float> y(set.data.y.values().begin(), set.data.y.values().end());
  EXPECT_EQ(x, (std::vector<float>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(y, (std::vector<float>{1, 2, 0, 1, 2, 0}));
  EXPECT_EQ(make_text_dataset("abcabca", {.context = 3, .stride = 1}).data.size(), 4u);
  EXPECT_EQ(make_text_dataset("abcabc", {.context = 3}).data.size(), 1u);
  EXPECT_EQ(make_text_dataset("abca", {.context = 3}).data.size(), 1u);
  EXPECT_THROW(make_text_dataset("abc", {.context = 3}), UsageError);
  EXPECT_THROW(make_text_dataset("abc", {.context = 0}), UsageError);
}

TEST(Text, ComesFromAFile) {
  const testing::TempDir folder;
  folder.write("text.txt", "to be or not to be");
  const TextDataset set = load_text_dataset((folder.path() / "text.txt").string(), {.context = 4, .stride = 2});
  EXPECT_EQ(set.data.size(), 7u);
  EXPECT_THROW(load_text_dataset((folder.path() / "none.txt").string()), IoError);
}

}  // namespace
}  // namespace imago
