#include "lm/byte_trie.h"

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

}  // namespace imago::lm
