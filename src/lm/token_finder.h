#pragma once

// Finds tokens that stand for themselves in a text: special and added ones.

#include <optional>
#include <string_view>

#include "imago/lm.h"
#include "lm/byte_trie.h"
#include "models/vocabulary.h"

namespace imago::lm {

class TokenFinder {
 public:
  /// Throws UnsupportedError if a token is so long that looking for it could take quadratic time.
  void add(std::string_view text, TokenId id, const models::Token& token);
  bool empty() const noexcept { return trie_.empty(); }

  struct Found {
    std::size_t begin, end;  ///< with the white space that it takes along
    TokenId id;
  };
  /// The first one from `from` on; of several that start there the longest.
  std::optional<Found> find(std::string_view text, std::size_t from) const noexcept;

 private:
  struct Habits {
    TokenId id;
    bool lstrip, rstrip, single_word;
  };
  ByteTrie trie_;  // values are indices into habits_
  std::vector<Habits> habits_;
};

}  // namespace imago::lm
