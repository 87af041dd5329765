#pragma once

// What SentencePiece does to a text before it looks for tokens: replacements, spaces as U+2581, words.

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "lm/tokenizer.h"
#include "models/vocabulary_parts.h"

namespace imago::lm {

class SentenceText {
 public:
  explicit SentenceText(const models::Vocabulary& vocabulary);

  bool normalizes() const noexcept { return !map_.empty() || !normal_forms_.empty() || remove_extra_spaces_; }
  std::string normalize(std::string_view text) const;
  /// With spaces as U+2581, and one before the text where the model expects it.
  std::string marked(std::string_view text, TextEncoder::Place place) const;
  /// Pieces that no token reaches over, so that each can be encoded alone. Bounded by marks.
  void for_each_word(std::string_view marked, const std::function<void(std::string_view)>& word) const;

 private:
  models::CharacterMap map_;
  std::vector<std::string> normal_forms_;
  bool prefix_, once_, unless_there_, remove_extra_spaces_;
  bool cut_at_marks_;  // before every mark
  bool cut_at_words_;  // before marks that follow something else
};

/// Tokens by their text, without those that a text cannot spell: control, unknown, byte. Views of the vocabulary.
std::unordered_map<std::string_view, TokenId> spellable_tokens(const models::Vocabulary& vocabulary);

/// What becomes of characters that no token covers.
class Fallback {
 public:
  explicit Fallback(const models::Vocabulary& vocabulary);
  /// The ids of its bytes, else the unknown token, once for several in a row of the word that starts at ids[first].
  void append(std::string_view character, std::size_t first, std::vector<TokenId>& ids) const;
  bool has_bytes() const noexcept { return has_bytes_; }
  TokenId byte(char value) const noexcept { return bytes_[static_cast<unsigned char>(value)]; }

 private:
  std::array<TokenId, 256> bytes_;
  bool has_bytes_;
  TokenId unknown_;
};

}  // namespace imago::lm
