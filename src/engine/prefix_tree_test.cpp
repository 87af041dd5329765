// Pages and the tree over them, against a list of all texts that were kept.

#include "engine/prefix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace imago::engine {
namespace {

constexpr std::size_t kTokens = 4;

std::vector<TokenId> text(std::size_t size, TokenId first = 0) {
  std::vector<TokenId> made;
  for (std::size_t i = 0; i < size; ++i) made.push_back(first + static_cast<TokenId>(i));
  return made;
}

struct Store {
  explicit Store(std::size_t pages) : pool(pages), tree(pool, kTokens) {}

  /// As a request that computes a text and ends.
  std::vector<Page> keep(const std::vector<TokenId>& tokens) {
    std::vector<Page> pages;
    for (std::size_t i = 0; i < tokens.size(); i += kTokens) {
      std::optional<Page> page = pool.take();
      while (!page && tree.drop_one()) page = pool.take();
      if (!page) break;
      pages.push_back(*page);
    }
    if (pages.size() * kTokens >= tokens.size()) tree.insert(tokens, pages);
    for (const Page page : pages) pool.drop(page);
    return pages;
  }
  std::size_t found(const std::vector<TokenId>& tokens) {
    const CachedPrefix prefix = tree.find(tokens);
    EXPECT_EQ(prefix.tokens, prefix.pages.size() * kTokens);
    return prefix.tokens + prefix.more;
  }

  PagePool pool;
  PrefixTree tree;
};

TEST(PagePool, CountsHolders) {
  PagePool pool(2);
  const Page a = *pool.take(), b = *pool.take();
  EXPECT_NE(a, b);
  EXPECT_FALSE(pool.take());
  pool.hold(a);
  pool.drop(a);
  EXPECT_FALSE(pool.take());
  pool.keep(b);
  pool.drop(b);
  EXPECT_EQ(pool.held(), 1u);
  EXPECT_EQ(pool.cached(), 1u);
  pool.drop(a);
  EXPECT_EQ(pool.take(), a);
  pool.keep_no_longer(b);
  EXPECT_EQ(pool.take(), b);
}

TEST(PrefixTree, FindsWhatTextsHaveInCommonToTheToken) {
  Store store(16);
  const std::vector<Page> pages = store.keep(text(10));
  EXPECT_EQ(store.tree.pages(), 3u);
  EXPECT_EQ(store.found(text(10)), 10u);
  EXPECT_EQ(store.found(text(12)), 10u);
  EXPECT_EQ(store.found(text(9)), 9u);
  EXPECT_EQ(store.found(text(3)), 3u);
  EXPECT_EQ(store.found(text(5, 1)), 0u);
  EXPECT_EQ(store.found({}), 0u);
  std::vector<TokenId> fork = text(8);
  fork[6] = 77;
  EXPECT_EQ(store.found(fork), 6u);
  const CachedPrefix prefix = store.tree.find(fork);
  EXPECT_EQ(prefix.pages, std::vector<Page>{pages[0]});
  EXPECT_EQ(prefix.partial, pages[1]);
}

TEST(PrefixTree, WithStatesAPrefixEndsWhereTheyWereKept) {
  PagePool pages(20), states(2);
  PrefixTree tree(pages, kTokens, &states);
  std::vector<Page> held;
  for (int i = 0; i < 4; ++i) held.push_back(*pages.take());
  tree.insert(text(14), held);
  EXPECT_EQ(tree.find(text(14)).tokens, 0u);
  EXPECT_EQ(tree.find(text(14)).alike, 12u);

  const Page first = *states.take(), second = *states.take();
  tree.keep_state(std::span<const TokenId>(text(14)).first(8), first);
  tree.keep_state(text(12, 5), second);  // not there
  states.drop(first);
  states.drop(second);
  EXPECT_EQ(states.free(), 1u);
  const CachedPrefix found = tree.find(text(14));
  EXPECT_EQ(found.tokens, 8u);
  EXPECT_EQ(found.pages, (std::vector<Page>{held[0], held[1]}));
  EXPECT_EQ(found.state, first);
  EXPECT_EQ(found.more, 0u);

  EXPECT_TRUE(tree.drop_state());
  EXPECT_FALSE(tree.drop_state());
  EXPECT_EQ(tree.find(text(14)).tokens, 0u);
  EXPECT_EQ(states.free(), 2u);
  const Page again = *states.take();
  tree.keep_state(text(4), again);
  states.drop(again);
  for (const Page page : held) pages.drop(page);
  while (tree.drop_one()) {
  }
  EXPECT_EQ(states.free(), 2u) << "states go with their pages";
}

TEST(PrefixTree, ALongerTextTakesThePlaceOfItsStart) {
  Store store(16);
  store.keep(text(6));
  store.keep(text(11));
  EXPECT_EQ(store.tree.pages(), 3u);
  EXPECT_EQ(store.pool.cached(), 3u);
  EXPECT_EQ(store.found(text(20)), 11u);
  store.keep(text(9));  // known already
  EXPECT_EQ(store.tree.pages(), 3u);
  EXPECT_EQ(store.pool.free(), 13u);
}

TEST(PrefixTree, PagesThatSomebodyHoldsStay) {
  Store store(4);
  const std::vector<Page> pages = store.keep(text(16));
  store.pool.hold(pages[2]);
  EXPECT_TRUE(store.tree.drop_one());   // the last page
  EXPECT_FALSE(store.tree.drop_one());  // what goes on with a held one is of use
  store.pool.drop(pages[2]);
  EXPECT_TRUE(store.tree.drop_one());
  EXPECT_EQ(store.found(text(16)), 8u);
  store.tree.clear();
  EXPECT_EQ(store.pool.free(), 4u);
}

TEST(PrefixTree, TheLeastRecentlyUsedGoFirst) {
  Store store(4);
  store.keep(text(8));
  store.keep(text(8, 100));
  EXPECT_EQ(store.found(text(8)), 8u);
  store.keep(text(4, 200));
  EXPECT_EQ(store.found(text(8)), 8u);
  EXPECT_EQ(store.found(text(8, 100)), 4u);
}

TEST(PrefixTree, AChainOfAnyLengthIsFreed) {
  Store store(200'000);
  store.keep(text(800'000));
  EXPECT_EQ(store.found(text(800'000)), 800'000u);
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(store.tree.drop_one());
  EXPECT_EQ(store.found(text(800'000)), 796'000u);
}

TEST(PrefixTree, RandomTextsAreFoundAsFarAsTheyAreKept) {
  std::mt19937 random(1);
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  Store store(400);
  std::vector<std::vector<TokenId>> kept;
  for (int round = 0; round < 300; ++round) {
    std::vector<TokenId> tokens;
    if (!kept.empty() && below(2) == 0) {
      tokens = kept[below(kept.size())];
      tokens.resize(below(tokens.size() + 1));
    }
    const std::size_t more = below(12);
    for (std::size_t i = 0; i < more; ++i) tokens.push_back(static_cast<TokenId>(below(3)));
    std::size_t wanted = 0;
    for (const std::vector<TokenId>& other : kept) {
      wanted = std::max(wanted, static_cast<std::size_t>(std::ranges::mismatch(other, tokens).in1 - other.begin()));
    }
    EXPECT_EQ(store.found(tokens), wanted) << round;
    if (tokens.empty()) continue;
    store.keep(tokens);
    kept.push_back(tokens);
    EXPECT_EQ(store.tree.pages(), store.pool.cached());
  }
  EXPECT_GT(store.pool.free(), 0u) << "nothing was dropped, or the comparison is void";
}

}  // namespace
}  // namespace imago::engine
