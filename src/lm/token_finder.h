#pragma once

// Byte strings with a number each, and special and added tokens found in a text with them.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "imago/lm.h"
#include "models/vocabulary.h"

namespace imago::lm {

class ByteTrie {
 public:
  using Node = std::uint32_t;
  static constexpr Node kRoot = 0;
  static constexpr Node kNone = ~Node{0};
  static constexpr std::int32_t kNoValue = -1;

  /// A later value of the same text replaces an earlier one. REQUIRES: value >= 0, text is not empty.
  void insert(std::string_view text, std::int32_t value);
  bool empty() const noexcept { return values_.size() == 1; }

  Node step(Node node, unsigned char byte) const noexcept {
    if (node == kRoot) return first_[byte];
    if (slots_.empty()) return kNone;
    for (std::size_t at = hash(node, byte);; ++at) {
      const Slot& slot = slots_[at & (slots_.size() - 1)];
      if (slot.child == kNone) return kNone;
      if (slot.parent == node && slot.byte == byte) return slot.child;
    }
  }
  std::int32_t value(Node node) const noexcept { return values_[node]; }

  struct Match {
    std::size_t bytes;
    std::int32_t value;
  };
  /// The longest of the texts that `text` starts with.
  std::optional<Match> longest(std::string_view text) const noexcept;

 private:
  struct Slot {
    Node parent = 0;
    std::uint32_t byte = 0;
    Node child = kNone;
  };
  static std::size_t hash(Node node, std::uint32_t byte) noexcept {
    return static_cast<std::size_t>((std::uint64_t{node} << 8 | byte) * 0x9e3779b97f4a7c15u >> 24);
  }
  Node add(Node node, unsigned char byte);
  void put(const Slot& slot) noexcept;
  void grow();

  std::vector<Node> first_ = std::vector<Node>(256, kNone);  // children of the root, which most steps ask for
  std::vector<Slot> slots_;
  std::size_t filled_ = 0;
  std::vector<std::int32_t> values_ = {kNoValue};
};

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
