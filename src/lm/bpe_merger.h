#pragma once

// Byte pair encoding over token ids: of all neighbours that can be merged, those of the lowest rank first, from the
// left.

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "imago/lm.h"
#include "models/vocabulary.h"

namespace imago::lm {

/// Tokens by their text. Views of the vocabulary.
using TokenMap = std::unordered_map<std::string_view, TokenId>;
/// Those that `keep` is true for.
template <class Keep>
TokenMap ids_of(const models::Vocabulary& vocabulary, Keep&& keep) {
  TokenMap ids;
  ids.reserve(vocabulary.tokens.size());
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (keep(vocabulary.tokens[id])) ids.emplace(vocabulary.tokens[id].text, static_cast<TokenId>(id));
  }
  return ids;
}

class BpeMerger {
 public:
  /// The merges of a vocabulary; those of tokens that are not in `ids` never happen. REQUIRES: no pair comes twice.
  BpeMerger(const models::Vocabulary& vocabulary, const TokenMap& ids);

  /// Memory that calls share.
  struct Workspace {
    std::vector<std::uint32_t> ranks;
    std::vector<TokenId> wholes;
    std::vector<std::int32_t> next, previous;
    std::vector<std::uint64_t> heap;
  };
  /// Merges `symbols` as far as it goes. Symbols below 0 stay as they are. n log n in their number.
  void merge(std::vector<TokenId>& symbols, Workspace& workspace) const;

 private:
  static constexpr std::uint32_t kNever = ~std::uint32_t{0};
  struct Slot {
    std::uint64_t pair;
    std::uint32_t rank = kNever;  // kNever: an empty slot
    TokenId whole = 0;
  };
  const Slot& find(TokenId left, TokenId right) const noexcept;
  void merge_few(std::vector<TokenId>& symbols, Workspace& workspace) const;
  void merge_many(std::vector<TokenId>& symbols, Workspace& workspace) const;

  std::vector<Slot> slots_;
};

}  // namespace imago::lm
