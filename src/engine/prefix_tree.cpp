#include "engine/prefix_tree.h"

#include <algorithm>
#include <cassert>

namespace imago::engine {

std::size_t common_tokens(std::span<const TokenId> a, std::span<const TokenId> b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

PrefixTree::PrefixTree(PagePool& pool, std::size_t page_tokens, PagePool* states)
    : pool_(pool), states_(states), page_tokens_(page_tokens), nodes_(1) {}

PrefixTree::Place PrefixTree::locate(Node parent, std::span<const TokenId> tokens) const {
  const std::vector<Node>& children = nodes_[parent].children;
  const auto at = std::ranges::lower_bound(
      children, tokens,
      [](std::span<const TokenId> a, std::span<const TokenId> b) { return std::ranges::lexicographical_compare(a, b); },
      [&](Node child) { return std::span<const TokenId>(nodes_[child].tokens); });
  // In lexicographic order the closest ones are neighbours.
  Place place{static_cast<std::size_t>(at - children.begin()), kRoot, 0};
  const auto consider = [&](Node child) {
    const std::size_t common = common_tokens(nodes_[child].tokens, tokens);
    if (common > place.common) place = {place.index, child, common};
  };
  if (at != children.end()) consider(*at);
  if (at != children.begin()) consider(*std::prev(at));
  return place;
}

CachedPrefix PrefixTree::find(std::span<const TokenId> tokens) {
  CachedPrefix found;
  Node node = kRoot;
  std::size_t kept = 0;
  for (;;) {
    const std::span<const TokenId> rest = tokens.subspan(found.tokens);
    const Place place = locate(node, rest.first(std::min(rest.size(), page_tokens_)));
    if (place.closest == kRoot) break;
    touch(place.closest);
    if (place.common < page_tokens_) {
      found.more = place.common;
      found.partial = nodes_[place.closest].page;
      break;
    }
    node = place.closest;
    found.pages.push_back(nodes_[node].page);
    found.tokens += page_tokens_;
    if (!nodes_[node].state) continue;
    found.state = nodes_[node].state;
    kept = found.tokens;
  }
  if (states_ != nullptr) {
    found.alike = found.tokens;
    found.tokens = kept;
    found.pages.resize(kept / page_tokens_);
    found.more = 0;
  }
  return found;
}

void PrefixTree::keep_state(std::span<const TokenId> tokens, Page slot) {
  Node node = kRoot;
  for (std::size_t i = 0; i < tokens.size(); i += page_tokens_) {
    const Place place = locate(node, tokens.subspan(i, std::min(page_tokens_, tokens.size() - i)));
    if (place.common != page_tokens_) return;
    node = place.closest;
  }
  if (node == kRoot || nodes_[node].state) return;
  states_->keep(slot);
  nodes_[node].state = slot;
  with_state_.push_back(node);
}

void PrefixTree::release_state(Node node) {
  if (!nodes_[node].state) return;
  states_->keep_no_longer(*nodes_[node].state);
  nodes_[node].state.reset();
  std::erase(with_state_, node);
}

bool PrefixTree::drop_state() {
  Node oldest = kRoot;
  for (const Node node : with_state_) {
    if (states_->is_held(*nodes_[node].state)) continue;
    if (oldest == kRoot || nodes_[node].used < nodes_[oldest].used) oldest = node;
  }
  if (oldest == kRoot) return false;
  release_state(oldest);
  return true;
}

void PrefixTree::insert(std::span<const TokenId> tokens, std::span<const Page> pages) {
  Node node = kRoot;
  for (std::size_t i = 0; i * page_tokens_ < tokens.size(); ++i) {
    const std::span<const TokenId> rest = tokens.subspan(i * page_tokens_);
    const std::span<const TokenId> own = rest.first(std::min(rest.size(), page_tokens_));
    Place place = locate(node, own);
    if (place.closest != kRoot && place.common == own.size()) {  // there already, perhaps with more behind it
      touch(place.closest);
      node = place.closest;
      continue;
    }
    if (place.closest != kRoot && place.common == nodes_[place.closest].tokens.size()) {  // the start of what comes now
      remove(place.closest);
      place = locate(node, own);
    }
    node = add(node, place.index, own, pages[i]);
  }
}

PrefixTree::Node PrefixTree::add(Node parent, std::size_t index, std::span<const TokenId> tokens, Page page) {
  assert(parent == kRoot || nodes_[parent].tokens.size() == page_tokens_);
  Node node = static_cast<Node>(nodes_.size());
  if (spare_.empty()) {
    nodes_.emplace_back();
  } else {
    node = spare_.back();
    spare_.pop_back();
  }
  pool_.keep(page);
  if (parent != kRoot && nodes_[parent].children.empty()) leaves_.erase(nodes_[parent].used);
  nodes_[node] = {.tokens = {tokens.begin(), tokens.end()}, .page = page, .parent = parent, .used = ++clock_};
  leaves_.emplace(clock_, node);
  std::vector<Node>& siblings = nodes_[parent].children;
  siblings.insert(siblings.begin() + static_cast<std::ptrdiff_t>(index), node);
  return node;
}

/// REQUIRES: a leaf.
void PrefixTree::remove(Node node) {
  Entry& entry = nodes_[node];
  assert(node != kRoot && entry.children.empty());
  const Node parent = entry.parent;
  std::erase(nodes_[parent].children, node);
  leaves_.erase(entry.used);
  pool_.keep_no_longer(entry.page);
  release_state(node);
  entry = {};
  spare_.push_back(node);
  if (parent != kRoot && nodes_[parent].children.empty()) leaves_.emplace(nodes_[parent].used, parent);
}

void PrefixTree::touch(Node node) {
  Entry& entry = nodes_[node];
  const bool leaf = entry.children.empty();
  if (leaf) leaves_.erase(entry.used);
  entry.used = ++clock_;
  if (leaf) leaves_.emplace(entry.used, node);
}

bool PrefixTree::drop_one() {
  for (const auto& [used, node] : leaves_) {
    if (pool_.is_held(nodes_[node].page)) continue;
    remove(node);
    return true;
  }
  return false;
}

void PrefixTree::clear() {
  for (std::size_t i = 1; i < nodes_.size(); ++i) {
    if (!nodes_[i].tokens.empty()) pool_.keep_no_longer(nodes_[i].page);
  }
  while (!with_state_.empty()) release_state(with_state_.back());
  nodes_.assign(1, {});
  spare_.clear();
  leaves_.clear();
}

}  // namespace imago::engine
