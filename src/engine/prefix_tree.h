#pragma once

// Which tokens the pages of a cache hold, so that requests that begin alike compute them once.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "engine/page_pool.h"
#include "imago/lm.h"

namespace imago::engine {

/// With how many equal tokens both begin.
std::size_t common_tokens(std::span<const TokenId> a, std::span<const TokenId> b);

/// What is cached of a text from its start.
struct CachedPrefix {
  std::vector<Page> pages;  ///< full ones
  std::size_t tokens = 0;   ///< in them
  std::size_t more = 0;     ///< tokens at the start of `partial` that go on from there; 0: no such page
  Page partial = 0;
  /// Where there are states: the slot of those after `tokens`, none for no tokens; and with how many tokens in full
  /// pages the text begins like a cached one, whose states were not kept there.
  std::optional<Page> state = {};
  std::size_t alike = 0;
};

/// A tree of pages. Each node is a page of up to `page_tokens` tokens that continue its parent's; only full pages have
/// children. The tree holds its pages in the pool, and gives up those that nobody else holds, least recently used
/// first. Lookups take time linear in the tokens but for a logarithm. Not thread-safe.
///
/// A model with states can go on only from where they were kept: some nodes hold a slot of `states` with those after
/// their last token, and a prefix ends at such a node.
class PrefixTree {
 public:
  /// `states`: null for models without them.
  PrefixTree(PagePool& pool, std::size_t page_tokens, PagePool* states = nullptr);
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;
  ~PrefixTree() { clear(); }

  /// The longest prefix of `tokens` that is cached. Nobody holds its pages for the caller yet. Counts as a use.
  CachedPrefix find(std::span<const TokenId> tokens);
  /// Keeps pages of `tokens`, of which the last may be partly filled. Those whose tokens are there already stay the
  /// caller's alone. REQUIRES: as many pages as tokens need.
  void insert(std::span<const TokenId> tokens, std::span<const Page> pages);
  /// Keeps a slot with the states after `tokens`, whole pages, unless there are such or their pages are not cached.
  void keep_state(std::span<const TokenId> tokens, Page slot);
  /// Gives up the least recently used slot that nobody else holds. False if there is none.
  bool drop_state();
  /// Drops the least recently used page that nobody else holds and that no cached page continues. False if there is
  /// none.
  bool drop_one();
  void clear();

  std::size_t pages() const noexcept { return nodes_.size() - 1 - spare_.size(); }

 private:
  using Node = std::uint32_t;
  static constexpr Node kRoot = 0;

  struct Entry {
    std::vector<TokenId> tokens;
    Page page = 0;
    Node parent = kRoot;
    std::vector<Node> children = {};  ///< in the order of their tokens; no two begin one with the other
    std::uint64_t used = 0;
    std::optional<Page> state = {};
  };
  struct Place {
    std::size_t index;   ///< among the children: where the tokens are or would be
    Node closest;        ///< the child that has most in common with them; the root if there is none
    std::size_t common;  ///< so many tokens
  };

  Place locate(Node parent, std::span<const TokenId> tokens) const;
  Node add(Node parent, std::size_t index, std::span<const TokenId> tokens, Page page);
  void remove(Node node);
  void touch(Node node);
  void release_state(Node node);

  PagePool& pool_;
  PagePool* states_;
  std::size_t page_tokens_;
  std::vector<Entry> nodes_;  // numbers instead of pointers: a chain of any length is freed without recursion
  std::vector<Node> spare_;
  std::map<std::uint64_t, Node> leaves_;  // by their last use
  std::vector<Node> with_state_;
  std::uint64_t clock_ = 0;
};

}  // namespace imago::engine
