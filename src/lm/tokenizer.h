#pragma once

// What the kinds of tokenizers share.

#include <algorithm>
#include <functional>
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
  /// Applied before added tokens that are `normalized` are looked for.
  virtual std::string normalize(std::string_view text) const { return std::string(text); }

  enum class Place : std::uint8_t { start, after_special };
  /// Appends the ids of `text`, which is normalized.
  virtual void encode(std::string_view text, Place place, std::vector<TokenId>& ids) const = 0;
};

// REQUIRES: the vocabulary is checked and of that kind. Throw UnsupportedError.
std::unique_ptr<const TextEncoder> make_byte_bpe(const models::Vocabulary& vocabulary);
std::unique_ptr<const TextEncoder> make_sentence_bpe(const models::Vocabulary& vocabulary);
std::unique_ptr<const TextEncoder> make_unigram(const models::Vocabulary& vocabulary);
std::unique_ptr<const TextEncoder> make_word_piece(const models::Vocabulary& vocabulary);

/// Remembers where the ids of a word stand in the output, so that it holds no copy of either. Bounded: a later word may
/// take the place of an earlier one.
class WordCache {
 public:
  /// `text_bytes` decides how large it is: none for texts too short to gain.
  explicit WordCache(std::size_t text_bytes) : entries_(text_bytes < 1024 ? 0 : kEntries) {}

  /// Appends the ids of `word`: those it had before, else what `encode` appends. `word` and ids stay where they are.
  template <class Encode>
  void take(std::string_view word, std::vector<TokenId>& ids, Encode&& encode) {
    if (entries_.empty() || word.size() > kLongest) return encode();
    Entry& entry = entries_[std::hash<std::string_view>()(word) % kEntries];
    if (entry.word == word && entry.word.data() != nullptr) {
      ids.resize(ids.size() + entry.count);
      std::copy_n(ids.begin() + static_cast<std::ptrdiff_t>(entry.first), entry.count,
                  ids.end() - static_cast<std::ptrdiff_t>(entry.count));
    } else {
      const std::size_t first = ids.size();
      encode();
      entry = {word, first, ids.size() - first};
    }
  }

 private:
  static constexpr std::size_t kEntries = 8192;
  static constexpr std::size_t kLongest = 64;
  struct Entry {
    std::string_view word;
    std::size_t first = 0, count = 0;
  };
  std::vector<Entry> entries_;
};

}  // namespace imago::lm

namespace imago {

/// Makes tokenizers for those who have read the vocabulary already.
struct TokenizerMaker {
  /// Throws UnsupportedError, for an expression that cannot be used, say. REQUIRES: a vocabulary as read_vocabulary
  /// returns it.
  static Tokenizer make(models::Vocabulary vocabulary);
};

}  // namespace imago
