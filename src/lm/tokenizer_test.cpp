#include "lm/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <random>

#include "imago/error.h"
#include "lm/byte_letters.h"
#include "lm/unicode_text.h"
#include "testing/random_text.h"

namespace imago {
namespace {

using models::Token;
using models::TokenizerKind;
using models::TokenType;
using models::Vocabulary;
using Ids = std::vector<TokenId>;

const std::string kMark = "\xe2\x96\x81";

std::string letters_of(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) lm::append_utf8(out, lm::kByteLetters[static_cast<unsigned char>(byte)]);
  return out;
}

/// Byte-level BPE learned from `corpus` by counting, the slow way. Words are runs of spaces and of other bytes.
Vocabulary trained(std::string_view corpus, int merges) {
  Vocabulary vocabulary;
  vocabulary.patterns = {" +|[^ ]+"};
  for (int byte = 0; byte < 256; ++byte) vocabulary.tokens.push_back({.text = letters_of(std::string(1, char(byte)))});
  std::vector<std::vector<std::string>> words(1);
  for (std::size_t i = 0; i < corpus.size(); ++i) {
    if (i > 0 && (corpus[i] == ' ') != (corpus[i - 1] == ' ')) words.emplace_back();
    words.back().push_back(letters_of(corpus.substr(i, 1)));
  }
  for (int merge = 0; merge < merges; ++merge) {
    std::map<std::pair<std::string, std::string>, int> counts;
    for (const auto& word : words) {
      for (std::size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
    }
    if (counts.empty()) break;
    const auto best = std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; })->first;
    vocabulary.merges.push_back(best);
    const std::string whole = best.first + best.second;
    if (std::ranges::find(vocabulary.tokens, whole, &Token::text) == vocabulary.tokens.end()) {
      vocabulary.tokens.push_back({.text = whole});
    }
    for (auto& word : words) {
      for (std::size_t i = 0; i + 1 < word.size(); ++i) {
        if (word[i] != best.first || word[i + 1] != best.second) continue;
        word[i] = whole;
        word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    }
  }
  return vocabulary;
}

/// Merging as it is defined: the first merge of the list that applies, at its first place, again and again.
Ids merged_slowly(const Vocabulary& vocabulary, std::string_view word) {
  std::vector<std::string> pieces;
  for (const char byte : word) pieces.push_back(letters_of(std::string(1, byte)));
  for (bool found = true; found;) {
    found = false;
    for (const auto& [left, right] : vocabulary.merges) {
      for (std::size_t i = 0; i + 1 < pieces.size() && !found; ++i) {
        if (pieces[i] != left || pieces[i + 1] != right) continue;
        pieces[i] += right;
        pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        found = true;
      }
      if (found) break;
    }
  }
  Ids ids;
  for (const std::string& piece : pieces) {
    ids.push_back(
        static_cast<TokenId>(std::ranges::find(vocabulary.tokens, piece, &Token::text) - vocabulary.tokens.begin()));
  }
  return ids;
}

const std::string kCorpus =
    "the cat sat on the mat and the other cats sat on other mats banana bandana aaaa aaaaaaa "
    "na\xc3\xafve caf\xc3\xa9 nana the end";

TEST(ByteBpe, MergesAsDefined) {
  const Vocabulary vocabulary = trained(kCorpus, 60);
  const Tokenizer tokenizer = TokenizerMaker::make(vocabulary);
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {
    std::string word;
    const std::size_t size = 1 + random() % (i % 10 == 0 ? 200 : 30);  // beyond what is merged without a heap
    while (word.size() < size) word += "thecasonmdr\xc3\xaf\xa9\xff"[random() % 15];
    std::erase(word, '\0');
    // Bytes that are no UTF-8 are words of their own: join what the expression sees apart.
    Ids expected;
    for (std::size_t at = 0; at < word.size();) {
      std::size_t end = lm::end_of_valid(word, at);
      if (end == at) {
        while (end < word.size() && !lm::character_at(word, end).valid) ++end;
      }
      const Ids part = merged_slowly(vocabulary, word.substr(at, end - at));
      expected.insert(expected.end(), part.begin(), part.end());
      at = end;
    }
    EXPECT_EQ(tokenizer.encode(word), expected);
    EXPECT_EQ(tokenizer.decode(expected), word);
  }
}

TEST(ByteBpe, RepeatedWordsOfLongTextsAreTheSame) {
  const Vocabulary vocabulary = trained(kCorpus, 60);
  const Tokenizer tokenizer = TokenizerMaker::make(vocabulary);
  std::string text;
  Ids expected;
  std::mt19937 random(9);
  const std::array<std::string, 6> words = {"the", "bananas", "cat", "other", "x", "mats"};
  while (text.size() < 20000) {
    const std::string& word = words[random() % words.size()];
    for (const std::string& piece : {word, std::string(1 + random() % 2, ' ')}) {
      text += piece;
      const Ids part = merged_slowly(vocabulary, piece);
      expected.insert(expected.end(), part.begin(), part.end());
    }
  }
  EXPECT_EQ(tokenizer.encode(text), expected);
}

TEST(ByteBpe, AnyBytesComeBack) {  // threat 71
  const Tokenizer tokenizer = TokenizerMaker::make(trained(kCorpus, 40));
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    std::string text = testing::random_text(random, 30);
    for (int wrong = 0; wrong < 4; ++wrong) text.insert(random() % (text.size() + 1), 1, static_cast<char>(random()));
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
  for (const std::string& text : {std::string("\xc0\xaf"), std::string("\xed\xa0\x80"), std::string("\0a\0", 3),
                                  std::string("\xf4\x90\x80\x80"), std::string("\xff\xfe"), std::string()}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(ByteBpe, WordsThatAreTokensNeedNoMergesWhereTheyAreIgnored) {
  Vocabulary vocabulary = trained("ab ab", 1);
  vocabulary.tokens.push_back({.text = "xyz"});
  EXPECT_EQ(TokenizerMaker::make(vocabulary).encode("xyz"), (Ids{'x', 'y', 'z'}));
  vocabulary.ignore_merges = true;
  EXPECT_EQ(TokenizerMaker::make(vocabulary).encode("xyz"), (Ids{257}));
}

TEST(Tokenizer, LongTextsWithoutSpacesTakeLittleTime) {  // threat 71: quadratic time would take hours
  const std::size_t size = std::size_t{4} << 20;
  Vocabulary bytes = trained(kCorpus, 60);
  bytes.patterns.clear();
  bytes.pre_tokenizer = "llama-bpe";
  const std::string text(size, 'a');
  const Tokenizer tokenizer = TokenizerMaker::make(bytes);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);

  Vocabulary sentence;
  sentence.kind = TokenizerKind::sentence_bpe;
  sentence.tokens = {{.text = "a", .score = -9}, {.text = "aa", .score = -1}, {.text = "aaaa", .score = -2}};
  const std::string shorter = text.substr(0, size / 4);
  EXPECT_EQ(TokenizerMaker::make(sentence).encode(shorter).size(), size / 16);
  sentence.kind = TokenizerKind::unigram;
  EXPECT_EQ(TokenizerMaker::make(sentence).encode(shorter).size(), size / 16);

  bytes.normal_forms = {"NFC"};
  std::string marks = "e";
  while (marks.size() < 2'000'000) marks += marks.size() % 3 == 0 ? "\xcc\x81" : "\xcc\xa3";
  EXPECT_GT(TokenizerMaker::make(bytes).encode(marks).size(), 1000u);
}

TEST(Tokenizer, NormalFormsAreThoseOfUnicode) {
  EXPECT_EQ(lm::normal_form("e\xcc\x81", "NFC"), "\xc3\xa9");
  EXPECT_EQ(lm::normal_form("\xc3\xa9", "NFD"), "e\xcc\x81");
  EXPECT_EQ(lm::normal_form("a\xcc\x81\xcc\xa3", "NFD"), "a\xcc\xa3\xcc\x81");  // marks by class: below, then above
  EXPECT_EQ(lm::normal_form("a\xcc\x81\xcc\xa3", "NFC"), "\xe1\xba\xa1\xcc\x81");
  EXPECT_EQ(lm::normal_form("\xef\xac\x81", "NFKC"), "fi");
  EXPECT_EQ(lm::normal_form("\xef\xac\x81", "NFC"), "\xef\xac\x81");
  EXPECT_EQ(lm::normal_form("\xea\xb0\x80", "NFD"), "\xe1\x84\x80\xe1\x85\xa1");
  EXPECT_EQ(lm::normal_form("x\xff"
                            "e\xcc\x81",
                            "NFC"),
            "x\xff\xc3\xa9");
}

TEST(Tokenizer, SpecialTokensAreReadOnlyWhenAsked) {  // threat 71
  Vocabulary vocabulary = trained(kCorpus, 10);
  const auto add = [&](Token token) {
    vocabulary.tokens.push_back(std::move(token));
    return static_cast<TokenId>(vocabulary.tokens.size() - 1);
  };
  const TokenId bos = add({.text = "<s>", .type = TokenType::control});
  const TokenId longer = add({.text = "<s>>", .type = TokenType::control});
  const TokenId user = add({.text = "<tab>", .type = TokenType::user_defined});
  const TokenId left = add({.text = "<l>", .type = TokenType::control, .lstrip = true});
  const TokenId right = add({.text = "<r>", .type = TokenType::control, .rstrip = true});
  const TokenId word = add({.text = "one", .type = TokenType::user_defined, .single_word = true});
  vocabulary.bos = bos;
  vocabulary.add_bos = true;
  vocabulary.ends = {bos};
  const Tokenizer tokenizer = TokenizerMaker::make(vocabulary);
  EXPECT_EQ(tokenizer.encode("<s>"), (Ids{'<', 's', '>'}));
  EXPECT_EQ(tokenizer.encode("<s>", true), (Ids{bos, bos}));
  EXPECT_EQ(tokenizer.encode("<s>>x", true), (Ids{bos, longer, 'x'}));
  EXPECT_EQ(tokenizer.encode("x<tab>y"), (Ids{'x', user, 'y'}));
  EXPECT_EQ(tokenizer.encode("x \n<l> y", true), (Ids{bos, 'x', left, ' ', 'y'}));
  EXPECT_EQ(tokenizer.encode("x <r> \ty", true), (Ids{bos, 'x', ' ', right, 'y'}));
  EXPECT_EQ(tokenizer.encode("one."), (Ids{word, '.'}));
  EXPECT_EQ(tokenizer.encode("one1")[0] == word, false);
  EXPECT_EQ(tokenizer.encode("\xc3\xa9one")[0] == word || tokenizer.encode("\xc3\xa9one").back() == word, false);
  EXPECT_EQ(tokenizer.decode(Ids{bos, 'x', user, left}), "x<tab>");
  EXPECT_EQ(tokenizer.decode(Ids{bos, 'x', user, left}, true), "<s>x<tab><l>");
  EXPECT_EQ(tokenizer.piece(bos), "");
  EXPECT_EQ(tokenizer.piece(bos, true), "<s>");
  EXPECT_TRUE(tokenizer.is_control(bos) && !tokenizer.is_control(user) && tokenizer.is_end(bos) &&
              !tokenizer.is_end(user));
}

TEST(Tokenizer, NormalizedTokensAreFoundInNormalizedText) {
  Vocabulary vocabulary = trained(kCorpus, 10);
  vocabulary.normal_forms = {"NFC"};
  vocabulary.tokens.push_back({.text = "\xc3\xa9!", .type = TokenType::user_defined, .normalized = true});
  vocabulary.tokens.push_back({.text = "\xc3\xa9?", .type = TokenType::user_defined});
  const auto first = static_cast<TokenId>(vocabulary.tokens.size() - 2);
  const Tokenizer tokenizer = TokenizerMaker::make(vocabulary);
  EXPECT_EQ(tokenizer.encode("e\xcc\x81!"), (Ids{first}));
  EXPECT_EQ(tokenizer.encode("e\xcc\x81?").back(), '?');
  EXPECT_EQ(tokenizer.encode("\xc3\xa9?"), (Ids{first + 1}));
}

TEST(Tokenizer, IdsOutsideTheVocabularyAreRefused) {  // threat 73
  const Tokenizer tokenizer = TokenizerMaker::make(trained(kCorpus, 10));
  const auto size = static_cast<TokenId>(tokenizer.size());
  for (const TokenId id : {-1, size, std::numeric_limits<TokenId>::max(), std::numeric_limits<TokenId>::min()}) {
    const std::string words = std::to_string(id) + " is not a token: ids go from 0 to " + std::to_string(size - 1);
    const auto expect = [&](auto&& call) {
      try {
        call();
        ADD_FAILURE() << id;
      } catch (const UsageError& error) {
        EXPECT_EQ(error.what(), words);
      }
    };
    expect([&] { tokenizer.decode(Ids{0, id}); });
    expect([&] { tokenizer.piece(id); });
    expect([&] { tokenizer.spelling(id); });
    EXPECT_FALSE(tokenizer.is_control(id));
    EXPECT_FALSE(tokenizer.is_end(id));
  }
}

// ---- SentencePiece

Vocabulary sentence_vocabulary(TokenizerKind kind, std::vector<std::pair<std::string, float>> scores, bool bytes) {
  Vocabulary vocabulary;
  vocabulary.kind = kind;
  vocabulary.tokens.push_back({.text = "<unk>", .type = TokenType::unknown});
  vocabulary.unknown = 0;
  for (auto& [text, score] : scores) vocabulary.tokens.push_back({.text = text, .score = score});
  for (int byte = 0; bytes && byte < 256; ++byte) {
    constexpr char kHex[] = "0123456789ABCDEF";
    vocabulary.tokens.push_back(
        {.text = std::string("<0x") + kHex[byte >> 4] + kHex[byte & 15] + ">", .type = TokenType::byte});
  }
  vocabulary.byte_fallback = bytes;
  vocabulary.add_space_prefix = true;
  return vocabulary;
}

TEST(SentenceBpe, TheBestScoreIsMergedFirst) {
  Vocabulary vocabulary = sentence_vocabulary(
      TokenizerKind::sentence_bpe,
      {{kMark, -10}, {"a", -11}, {"b", -12}, {"c", -13}, {"ab", -2}, {"bc", -1}, {kMark + "a", -3}, {"abc", -0.5f}},
      true);
  const Tokenizer tokenizer = TokenizerMaker::make(vocabulary);
  EXPECT_EQ(tokenizer.encode("abc"), (Ids{1, 8}));  // "bc" first, then "abc"
  EXPECT_EQ(tokenizer.encode("ab"), (Ids{1, 5}));   // "ab" before "▁a"
  EXPECT_EQ(tokenizer.encode("a a"), (Ids{7, 7}));
  EXPECT_EQ(tokenizer.encode("\xc3\xa9"), (Ids{1, 9 + 0xc3, 9 + 0xa9}));
  EXPECT_EQ(tokenizer.encode("\xff"), (Ids{1, 9 + 0xff}));
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    const std::string text = testing::random_text(random, 20);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(SentenceBpe, WithoutBytesUnknownCharactersAreOneToken) {
  const Tokenizer tokenizer =
      TokenizerMaker::make(sentence_vocabulary(TokenizerKind::sentence_bpe, {{kMark, 0}, {"a", 0}}, false));
  EXPECT_EQ(tokenizer.encode("axya"), (Ids{1, 2, 0, 2}));
}

TEST(SentenceBpe, TheSpaceInFrontIsAsTheTokenizerWantsIt) {
  Vocabulary vocabulary = sentence_vocabulary(TokenizerKind::sentence_bpe, {{kMark, 0}, {"a", 0}}, false);
  vocabulary.tokens.push_back({.text = "<s>", .type = TokenType::control});
  const auto encode = [&](std::string_view text) { return TokenizerMaker::make(vocabulary).encode(text, true); };
  EXPECT_EQ(encode("a<s>a"), (Ids{1, 2, 3, 1, 2}));
  EXPECT_EQ(encode(" a"), (Ids{1, 1, 2}));
  EXPECT_EQ(TokenizerMaker::make(vocabulary).decode(encode("a<s>a"), true), "a<s>a");
  vocabulary.space_prefix_once = vocabulary.space_prefix_unless_there = true;
  EXPECT_EQ(encode("a<s>a"), (Ids{1, 2, 3, 2}));
  EXPECT_EQ(encode(" a"), (Ids{1, 2}));
  vocabulary.add_space_prefix = false;
  EXPECT_EQ(encode("a a"), (Ids{2, 1, 2}));
}

TEST(Unigram, TheSumOfScoresIsTheLargest) {
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    std::map<std::string, float> scores = {{kMark, -3.0f}};
    for (int i = 0; i < 12; ++i) {
      std::string text;
      for (std::size_t size = 1 + random() % 3; size > 0; --size) text += static_cast<char>('a' + random() % 3);
      scores[text] = -static_cast<float>(random() % 1000) / 100;
    }
    for (const char* single : {"a", "b", "c"}) scores.emplace(single, -5.0f);
    const Vocabulary vocabulary = sentence_vocabulary(TokenizerKind::unigram, {scores.begin(), scores.end()}, false);
    std::string text;
    for (std::size_t size = 1 + random() % 9; size > 0; --size) text += static_cast<char>('a' + random() % 3);
    const Ids ids = TokenizerMaker::make(vocabulary).encode(text);
    double sum = 0;
    std::string joined;
    for (const TokenId id : ids) {
      sum += double{vocabulary.tokens[static_cast<std::size_t>(id)].score};
      joined += vocabulary.tokens[static_cast<std::size_t>(id)].text;
    }
    EXPECT_EQ(joined, kMark + text);
    // All ways to cut the text: a bit for each place between two letters.
    double best = -1e30;
    for (unsigned cuts = 0; cuts < 1u << (text.size() - 1); ++cuts) {
      double total = double{scores.at(kMark)};
      std::size_t begin = 0;
      for (std::size_t end = 1; end <= text.size(); ++end) {
        if (end < text.size() && (cuts >> (end - 1) & 1) == 0) continue;
        const auto found = scores.find(text.substr(begin, end - begin));
        total += found == scores.end() ? -1e20 : double{found->second};
        begin = end;
      }
      best = std::max(best, total);
    }
    EXPECT_NEAR(sum, best, 1e-4) << text;
  }
}

TEST(Unigram, ExtraSpacesGoAndUnknownCharactersJoin) {
  Vocabulary vocabulary =
      sentence_vocabulary(TokenizerKind::unigram, {{kMark + "a", -1}, {kMark, -2}, {"a", -1.5f}}, false);
  vocabulary.remove_extra_spaces = true;
  const Tokenizer tokenizer = TokenizerMaker::make(vocabulary);
  EXPECT_EQ(tokenizer.encode("  a   a "), (Ids{1, 1}));
  EXPECT_EQ(tokenizer.encode("xyza"), (Ids{2, 0, 3}));
}

// ---- WordPiece

TEST(WordPiece, TheLongestPieceWins) {
  Vocabulary vocabulary;
  vocabulary.kind = TokenizerKind::word_piece;
  for (const char* text :
       {"[UNK]", "un", "##aff", "##able", "##a", "caf", "##e", "!", "\xe4\xbd\xa0", "a", "\xc3\x89t\xc3\xa9"}) {
    vocabulary.tokens.push_back({.text = text});
  }
  vocabulary.tokens[0].type = TokenType::unknown;
  vocabulary.unknown = 0;
  vocabulary.word_prefix = "##";
  vocabulary.lowercase = vocabulary.strip_accents = vocabulary.split_chinese = true;
  const Tokenizer tokenizer = TokenizerMaker::make(vocabulary);
  EXPECT_EQ(tokenizer.encode("Unaffable!"), (Ids{1, 2, 3, 7}));
  EXPECT_EQ(tokenizer.encode("CAF\xc3\x89"), (Ids{5, 6}));
  EXPECT_EQ(tokenizer.encode("a\xe4\xbd\xa0\x01"
                             "a"),
            (Ids{9, 8, 9}));
  EXPECT_EQ(tokenizer.encode("unz un"), (Ids{0, 1}));
  EXPECT_EQ(tokenizer.encode(std::string(100, 'a')).size(), 100u);
  EXPECT_EQ(tokenizer.encode(std::string(101, 'a')), (Ids{0}));
  EXPECT_EQ(tokenizer.decode(Ids{1, 2, 3, 7, 9}), "unaffable! a");
  vocabulary.lowercase = vocabulary.strip_accents = false;
  EXPECT_EQ(TokenizerMaker::make(vocabulary).encode("\xc3\x89t\xc3\xa9"), (Ids{10}));

  // The same in the spelling of GGUF.
  vocabulary.lowercase = vocabulary.strip_accents = true;
  for (Token& token : vocabulary.tokens) {
    if (token.type == TokenType::normal)
      token.text = token.text.starts_with("##") ? token.text.substr(2) : kMark + token.text;
  }
  vocabulary.word_prefix = kMark;
  const Tokenizer gguf = TokenizerMaker::make(vocabulary);
  EXPECT_EQ(gguf.encode("Unaffable!"), (Ids{1, 2, 3, 7}));
  EXPECT_EQ(gguf.decode(Ids{1, 2, 3, 7, 9}), "unaffable! a");
}

}  // namespace
}  // namespace imago
