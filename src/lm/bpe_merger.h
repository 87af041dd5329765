#pragma once

// Byte pair encoding over token ids: of all neighbours that can be merged, those of the lowest rank first, from the
// left.

#include <cstdint>
#include <span>
#include <vector>

#include "imago/lm.h"

namespace imago::lm {

class BpeMerger {
 public:
  struct Merge {
    TokenId left, right, whole;
  };
  /// Best first. No pair comes twice.
  explicit BpeMerger(std::span<const Merge> merges);

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
