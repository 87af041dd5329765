// Any bytes come back from the ids of byte-level BPE, whatever cuts them into words; other kinds take any bytes.

#include "lm/tokenizer.h"

#include <cstdint>
#include <cstdlib>

#include "imago/error.h"
#include "lm/byte_letters.h"

namespace {

using namespace imago;
using models::TokenizerKind;
using models::TokenType;

models::Vocabulary byte_vocabulary(std::string pre_tokenizer, bool forms) {
  models::Vocabulary vocabulary;
  vocabulary.pre_tokenizer = std::move(pre_tokenizer);
  for (const char32_t letter : lm::kByteLetters) {
    std::string text;
    lm::append_utf8(text, letter);
    vocabulary.tokens.push_back({.text = text});
  }
  for (const auto& [left, right] : {std::pair("a", "a"), {"t", "h"}, {"th", "e"}, {"aa", "aa"}, {"1", "2"}}) {
    vocabulary.merges.emplace_back(left, right);
    vocabulary.tokens.push_back({.text = std::string(left) + right});
  }
  vocabulary.tokens.push_back({.text = "<s>", .type = TokenType::control});
  vocabulary.tokens.push_back({.text = "<t>", .type = TokenType::user_defined});
  if (forms) vocabulary.normal_forms = {"NFKC"};
  return vocabulary;
}

models::Vocabulary sentence_vocabulary(TokenizerKind kind) {
  models::Vocabulary vocabulary;
  vocabulary.kind = kind;
  vocabulary.tokens = {{.text = "<unk>", .type = TokenType::unknown},
                       {.text = "\xe2\x96\x81", .score = -3},
                       {.text = "a", .score = -2},
                       {.text = "aa", .score = -1},
                       {.text = "\xe2\x96\x81"
                                "a",
                        .score = -1.5f}};
  vocabulary.unknown = 0;
  vocabulary.add_space_prefix = true;
  vocabulary.word_prefix = "##";
  vocabulary.lowercase = vocabulary.strip_accents = vocabulary.split_chinese = true;
  return vocabulary;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Tokenizer exact[] = {TokenizerMaker::make(byte_vocabulary("gpt-2", false)),
                                    TokenizerMaker::make(byte_vocabulary("llama-bpe", false)),
                                    TokenizerMaker::make(byte_vocabulary("deepseek-llm", false)),
                                    TokenizerMaker::make(byte_vocabulary("gpt-4o", false)),
                                    TokenizerMaker::make(byte_vocabulary("tiny_aya", false)),
                                    TokenizerMaker::make(byte_vocabulary("superbpe", false))};
  static const Tokenizer others[] = {TokenizerMaker::make(byte_vocabulary("qwen2", true)),
                                     TokenizerMaker::make(sentence_vocabulary(TokenizerKind::sentence_bpe)),
                                     TokenizerMaker::make(sentence_vocabulary(TokenizerKind::unigram)),
                                     TokenizerMaker::make(sentence_vocabulary(TokenizerKind::word_piece))};
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const Tokenizer& tokenizer : exact) {
    for (const bool special : {false, true}) {
      if (tokenizer.decode(tokenizer.encode(text, special), special) != text) std::abort();
    }
  }
  for (const Tokenizer& tokenizer : others) tokenizer.decode(tokenizer.encode(text, true), true);
  return 0;
}
