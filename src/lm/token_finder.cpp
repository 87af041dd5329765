#include "lm/token_finder.h"

#include <fmt/format.h>

#include "imago/error.h"
#include "lm/unicode_text.h"

namespace imago::lm {

void ByteTrie::insert(std::string_view text, std::int32_t value) {
  Node node = kRoot;
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    const Node next = step(node, byte);
    node = next == kNone ? add(node, byte) : next;
  }
  values_[node] = value;
}

std::optional<ByteTrie::Match> ByteTrie::longest(std::string_view text) const noexcept {
  std::optional<Match> best;
  Node node = kRoot;
  for (std::size_t i = 0; i < text.size(); ++i) {
    node = step(node, static_cast<unsigned char>(text[i]));
    if (node == kNone) break;
    if (values_[node] != kNoValue) best = {i + 1, values_[node]};
  }
  return best;
}

ByteTrie::Node ByteTrie::add(Node node, unsigned char byte) {
  const auto child = static_cast<Node>(values_.size());
  values_.push_back(kNoValue);
  if (node == kRoot) {
    first_[byte] = child;
    return child;
  }
  if (2 * (filled_ + 1) > slots_.size()) grow();
  put({node, byte, child});
  ++filled_;
  return child;
}

void ByteTrie::put(const Slot& slot) noexcept {
  std::size_t at = hash(slot.parent, slot.byte);
  while (slots_[at & (slots_.size() - 1)].child != kNone) ++at;
  slots_[at & (slots_.size() - 1)] = slot;
}

void ByteTrie::grow() {
  std::vector<Slot> old(slots_.empty() ? 64 : 2 * slots_.size());
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.child != kNone) put(slot);
  }
}

namespace {

constexpr std::size_t kMaxBytes = 2048;

/// The character that ends at text[end - 1]. REQUIRES: end > 0.
Character character_before(std::string_view text, std::size_t end) noexcept {
  for (std::size_t back = 1; back <= 4 && back <= end; ++back) {
    if ((static_cast<unsigned char>(text[end - back]) & 0xc0) == 0x80) continue;
    const Character character = character_at(text, end - back);
    if (character.valid && character.bytes == back) return character;
    break;
  }
  return {0xfffd, 1, false};
}

}  // namespace

void TokenFinder::add(std::string_view text, TokenId id, const models::Token& token) {
  if (text.empty()) return;
  if (text.size() > kMaxBytes) {
    throw UnsupportedError(
        fmt::format("the special token {} has {} bytes: at most {} are supported", id, text.size(), kMaxBytes));
  }
  trie_.insert(text, static_cast<std::int32_t>(habits_.size()));
  habits_.push_back({id, token.lstrip, token.rstrip, token.single_word});
}

std::optional<TokenFinder::Found> TokenFinder::find(std::string_view text, std::size_t from) const noexcept {
  for (std::size_t at = from; at < text.size(); ++at) {
    if (trie_.step(ByteTrie::kRoot, static_cast<unsigned char>(text[at])) == ByteTrie::kNone) continue;
    const std::optional<ByteTrie::Match> match = trie_.longest(text.substr(at));
    if (!match) continue;
    const Habits& habits = habits_[static_cast<std::size_t>(match->value)];
    Found found{at, at + match->bytes, habits.id};
    if (habits.single_word) {
      const bool before = found.begin > 0 && is_word(character_before(text, found.begin).code);
      const bool after = found.end < text.size() && is_word(character_at(text, found.end).code);
      if (before || after) continue;
    }
    while (habits.lstrip && found.begin > from) {
      const Character character = character_before(text, found.begin);
      if (!character.valid || !is_space(character.code) || character.bytes > found.begin - from) break;
      found.begin -= character.bytes;
    }
    while (habits.rstrip && found.end < text.size()) {
      const Character character = character_at(text, found.end);
      if (!character.valid || !is_space(character.code)) break;
      found.end += character.bytes;
    }
    return found;
  }
  return std::nullopt;
}

}  // namespace imago::lm
