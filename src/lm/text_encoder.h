#pragma once

// One kind of tokenizer: plain text to ids, special tokens already taken out.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "imago/lm.h"
#include "models/vocabulary.h"

namespace imago::lm {

class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  /// Whether `normalize` changes texts at all.
  virtual bool normalizes() const noexcept { return false; }
  /// What stands in front of looking for added tokens that are `normalized`.
  virtual std::string normalize(std::string_view text) const { return std::string(text); }

  enum class Place : std::uint8_t { start, behind_special };
  /// Appends the ids of `text`, which is normalized.
  virtual void encode(std::string_view text, Place place, std::vector<TokenId>& ids) const = 0;
};

// REQUIRES: the vocabulary is checked and of that kind. Throw UnsupportedError.
std::unique_ptr<const TextEncoder> make_byte_bpe(const models::Vocabulary& vocabulary);
std::unique_ptr<const TextEncoder> make_sentence_bpe(const models::Vocabulary& vocabulary);
std::unique_ptr<const TextEncoder> make_unigram(const models::Vocabulary& vocabulary);
std::unique_ptr<const TextEncoder> make_word_piece(const models::Vocabulary& vocabulary);

}  // namespace imago::lm
