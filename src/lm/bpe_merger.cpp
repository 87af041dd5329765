#include "lm/bpe_merger.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace imago::lm {

namespace {

// Up to here looking at all pairs after each merge is faster than keeping a heap of them.
constexpr std::size_t kFew = 48;

std::uint64_t pair_of(TokenId left, TokenId right) noexcept {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

std::size_t hash(std::uint64_t pair) noexcept {
  const std::uint64_t mixed = (pair ^ pair >> 32) * 0x9e3779b97f4a7c15u;
  return static_cast<std::size_t>(mixed ^ mixed >> 29);
}

}  // namespace

BpeMerger::BpeMerger(const models::Vocabulary& vocabulary, const TokenMap& ids)
    : slots_(std::bit_ceil(2 * vocabulary.merges.size() + 1), Slot{.pair = 0}) {
  std::uint32_t rank = 0;
  for (const auto& [left_text, right_text] : vocabulary.merges) {
    const auto left = ids.find(left_text), right = ids.find(right_text), whole = ids.find(left_text + right_text);
    if (left == ids.end() || right == ids.end() || whole == ids.end()) continue;
    const std::uint64_t pair = pair_of(left->second, right->second);
    std::size_t at = hash(pair);
    while (slots_[at & (slots_.size() - 1)].rank != kNever) ++at;
    slots_[at & (slots_.size() - 1)] = {pair, rank++, whole->second};
  }
}

const BpeMerger::Slot& BpeMerger::find(TokenId left, TokenId right) const noexcept {
  const std::uint64_t pair = pair_of(left, right);
  for (std::size_t at = hash(pair);; ++at) {
    const Slot& slot = slots_[at & (slots_.size() - 1)];
    if (slot.pair == pair || slot.rank == kNever) return slot;
  }
}

void BpeMerger::merge(std::vector<TokenId>& symbols, Workspace& workspace) const {
  if (symbols.size() < 2) return;
  symbols.size() <= kFew ? merge_few(symbols, workspace) : merge_many(symbols, workspace);
}

void BpeMerger::merge_few(std::vector<TokenId>& symbols, Workspace& workspace) const {
  std::size_t pairs = symbols.size() - 1;
  workspace.ranks.resize(pairs);
  workspace.wholes.resize(pairs);
  const auto look = [&](std::size_t at) {
    const Slot& slot = find(symbols[at], symbols[at + 1]);
    workspace.ranks[at] = slot.rank;
    workspace.wholes[at] = slot.whole;
  };
  for (std::size_t i = 0; i < pairs; ++i) look(i);
  while (pairs > 0) {
    const auto first = workspace.ranks.begin(), last = first + static_cast<std::ptrdiff_t>(pairs);
    const auto best = std::min_element(first, last);
    if (*best == kNever) break;
    const auto at = static_cast<std::size_t>(best - first);
    symbols[at] = workspace.wholes[at];
    std::copy(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 2,
              symbols.begin() + static_cast<std::ptrdiff_t>(pairs) + 1,
              symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    std::copy(best + 1, last, best);
    const auto whole = workspace.wholes.begin();
    std::copy(whole + static_cast<std::ptrdiff_t>(at) + 1, whole + static_cast<std::ptrdiff_t>(pairs),
              whole + static_cast<std::ptrdiff_t>(at));
    --pairs;
    if (at < pairs) look(at);
    if (at > 0) look(at - 1);
  }
  symbols.resize(pairs + 1);
}

void BpeMerger::merge_many(std::vector<TokenId>& symbols, Workspace& workspace) const {
  // A list of symbols and a heap of (rank, place). An entry of the heap is out of date when the pair at its place has
  // another rank by now.
  const auto count = static_cast<std::int32_t>(symbols.size());
  const auto place = [](std::int32_t at) { return static_cast<std::size_t>(at); };
  auto& [ranks, wholes, next, previous, heap] = workspace;
  ranks.assign(symbols.size(), kNever);
  wholes.resize(symbols.size());
  next.resize(symbols.size());
  previous.resize(symbols.size());
  heap.clear();
  const auto look = [&](std::int32_t at) {
    const std::int32_t right = workspace.next[place(at)];
    if (right == count) {
      workspace.ranks[place(at)] = kNever;
      return;
    }
    const Slot& slot = find(symbols[place(at)], symbols[place(right)]);
    workspace.ranks[place(at)] = slot.rank;
    workspace.wholes[place(at)] = slot.whole;
    if (slot.rank == kNever) return;
    workspace.heap.push_back(std::uint64_t{slot.rank} << 32 | static_cast<std::uint32_t>(at));
  };
  for (std::int32_t i = 0; i < count; ++i) {
    next[place(i)] = i + 1;
    previous[place(i)] = i - 1;
  }
  for (std::int32_t i = 0; i + 1 < count; ++i) look(i);
  std::ranges::make_heap(heap, std::greater<>());
  const auto push_look = [&](std::int32_t at) {
    const std::size_t before = workspace.heap.size();
    look(at);
    if (workspace.heap.size() > before) std::ranges::push_heap(workspace.heap, std::greater<>());
  };
  while (!heap.empty()) {
    std::ranges::pop_heap(heap, std::greater<>());
    const std::uint64_t top = heap.back();
    heap.pop_back();
    const auto at = static_cast<std::int32_t>(top & 0x7fffffff);
    if (ranks[place(at)] != top >> 32) continue;
    const std::int32_t gone = next[place(at)], after = next[place(gone)];
    symbols[place(at)] = wholes[place(at)];
    ranks[place(gone)] = kNever;
    next[place(at)] = after;
    if (after != count) previous[place(after)] = at;
    push_look(at);
    if (previous[place(at)] >= 0) push_look(previous[place(at)]);
  }
  std::size_t kept = 0;
  for (std::int32_t i = 0; i != count; i = next[place(i)]) symbols[kept++] = symbols[place(i)];
  symbols.resize(kept);
}

}  // namespace imago::lm
