// WordPiece: BERT's normalization, then the longest token at each place of a word.

#include "lm/token_finder.h"
#include "lm/tokenizer.h"
#include "lm/unicode_text.h"
#include "models/vocabulary_parts.h"

namespace imago::lm {

namespace {

using models::TokenType;
using models::Vocabulary;

// Longer words are unknown, as in the original.
constexpr std::size_t kMaxWordCharacters = 100;

class WordPiece final : public TextEncoder {
 public:
  explicit WordPiece(const Vocabulary& vocabulary)
      : lowercase_(vocabulary.lowercase),
        strip_accents_(vocabulary.strip_accents),
        split_chinese_(vocabulary.split_chinese),
        unknown_(vocabulary.unknown.value_or(-1)) {
    const bool marks_starts = vocabulary.word_prefix == models::kSpaceMark;
    for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
      const models::Token& token = vocabulary.tokens[id];
      if (token.type != TokenType::normal && token.type != TokenType::user_defined) continue;
      const bool prefixed = token.text.starts_with(vocabulary.word_prefix) && !vocabulary.word_prefix.empty();
      const std::string_view text = std::string_view(token.text).substr(prefixed ? vocabulary.word_prefix.size() : 0);
      if (text.empty()) continue;
      (prefixed == marks_starts ? starts_ : rests_).insert(text, static_cast<TokenId>(id));
    }
  }

  bool normalizes() const noexcept override { return true; }
  std::string normalize(std::string_view text) const override {
    std::u32string codes;
    for (std::size_t at = 0; at < text.size();) {
      const Character character = character_at(text, at);
      at += character.bytes;
      const char32_t code = character.code;
      if (code == 0 || code == 0xfffd || is_control(code)) continue;
      if (is_space(code)) {
        codes += U' ';
      } else if (split_chinese_ && is_chinese(code)) {
        codes += U' ';
        codes += code;
        codes += U' ';
      } else {
        codes += code;
      }
    }
    if (strip_accents_) {
      codes = decomposed(codes, false);
      std::erase_if(codes, is_accent);
    }
    if (lowercase_) {
      std::u32string lower;
      lower.reserve(codes.size());
      for (const char32_t code : codes) append_lower(lower, code);
      codes = std::move(lower);
    }
    std::string out;
    out.reserve(codes.size());
    for (const char32_t code : codes) append_utf8(out, code);
    return out;
  }

  void encode(std::string_view text, Place, std::vector<TokenId>& ids) const override {
    std::size_t begin = 0, characters = 0;
    const auto end_word = [&](std::size_t end) {
      if (end > begin) encode_word(text.substr(begin, end - begin), characters, ids);
      characters = 0;
    };
    for (std::size_t at = 0; at < text.size();) {
      const Character character = character_at(text, at);
      const std::size_t next = at + character.bytes;
      if (is_space(character.code)) {
        end_word(at);
        begin = next;
      } else if (is_punctuation(character.code)) {
        end_word(at);
        encode_word(text.substr(at, character.bytes), 1, ids);
        begin = next;
      } else {
        ++characters;
      }
      at = next;
    }
    end_word(text.size());
  }

 private:
  void encode_word(std::string_view word, std::size_t characters, std::vector<TokenId>& ids) const {
    const std::size_t first = ids.size();
    bool known = characters <= kMaxWordCharacters;
    for (std::size_t at = 0; known && at < word.size();) {
      const auto match = (at == 0 ? starts_ : rests_).longest(word.substr(at));
      known = match.has_value();
      if (!known) break;
      ids.push_back(match->value);
      at += match->bytes;
    }
    if (known) return;
    ids.resize(first);
    if (unknown_ >= 0) ids.push_back(unknown_);
  }

  ByteTrie starts_, rests_;
  bool lowercase_, strip_accents_, split_chinese_;
  TokenId unknown_;
};

}  // namespace

std::unique_ptr<const TextEncoder> make_word_piece(const Vocabulary& vocabulary) {
  return std::make_unique<WordPiece>(vocabulary);
}

}  // namespace imago::lm
