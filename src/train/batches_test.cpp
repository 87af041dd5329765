#include "train/batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "imago/error.h"

namespace imago {
namespace {

std::vector<std::size_t> counted(std::size_t count) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  return order;
}

std::vector<std::size_t> shuffled(std::size_t count, std::uint64_t seed) {
  std::vector<std::size_t> order = counted(count);
  shuffle(order, seed);
  return order;
}

TEST(Batches, ShufflingKeepsAllAndDependsOnTheSeedAlone) {
  const std::vector<std::size_t> order = shuffled(1000, 7);
  EXPECT_EQ(order, shuffled(1000, 7));
  EXPECT_NE(order, shuffled(1000, 8));
  EXPECT_NE(order, counted(1000));
  std::vector<std::size_t> sorted = order;
  std::ranges::sort(sorted);
  EXPECT_EQ(sorted, counted(1000));
}

TEST(Batches, AllOrdersAreEquallyLikely) {
  std::map<std::vector<std::size_t>, int> seen;
  constexpr int kDraws = 24'000;
  for (int i = 0; i < kDraws; ++i) ++seen[shuffled(4, static_cast<std::uint64_t>(i))];
  ASSERT_EQ(seen.size(), 24u);
  double chi_square = 0;
  for (const auto& [order, times] : seen) chi_square += (times - 1000.0) * (times - 1000.0) / 1000.0;
  EXPECT_LT(chi_square, 52);  // 23 degrees of freedom: exceeded once in 2000
}

TEST(Batches, WhatIsDrawnFromOneSeedDiffers) {
  std::set<std::uint64_t> seeds;
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    seeds.insert(split_seed(seed));
    for (std::uint64_t i = 0; i < 100; ++i) seeds.insert({epoch_seed(seed, i), step_seed(seed, i)});
  }
  EXPECT_EQ(seeds.size(), 3u * 201u);
}

TEST(Batches, TheSplitIsDisjointAndComplete) {
  const Split split = split_examples(103, 0.25, 5);
  EXPECT_EQ(split.validation.size(), 26u);
  EXPECT_EQ(split.training.size(), 77u);
  EXPECT_TRUE(std::ranges::is_sorted(split.training));
  std::set<std::size_t> all(split.training.begin(), split.training.end());
  all.insert(split.validation.begin(), split.validation.end());
  EXPECT_EQ(all.size(), 103u);
  EXPECT_EQ(*all.rbegin(), 102u);
  EXPECT_EQ(split.validation, split_examples(103, 0.25, 5).validation);
  EXPECT_NE(split.validation, split_examples(103, 0.25, 6).validation);
  EXPECT_EQ(split_examples(10, 0.001, 1).validation.size(), 1u);
  EXPECT_TRUE(split_examples(10, 0, 1).validation.empty());
  EXPECT_EQ(split_examples(10, 0, 1).training, counted(10));
}

TEST(Batches, RefusesSplitsThatLeaveNothing) {
  EXPECT_THROW(split_examples(10, 1, 1), UsageError);
  EXPECT_THROW(split_examples(10, -0.1, 1), UsageError);
  EXPECT_THROW(split_examples(10, 0.99, 1), UsageError);
  EXPECT_THROW(split_examples(1, 0.5, 1), UsageError);
}

TEST(Batches, GathersExamplesInTheOrderAsked) {
  Tensor<float> from({4, 2, 3});
  std::iota(from.values().begin(), from.values().end(), 0.0f);
  Tensor<float> to;
  gather_examples(from, std::vector<std::size_t>{3, 0}, to);
  EXPECT_EQ(to.shape(), Shape({2, 2, 3}));
  EXPECT_EQ(to[0], 18);
  EXPECT_EQ(to[5], 23);
  EXPECT_EQ(to[6], 0);
  EXPECT_EQ(to[11], 5);
  const float* memory = to.values().data();
  gather_examples(from, std::vector<std::size_t>{1}, to);
  EXPECT_EQ(to.shape(), Shape({1, 2, 3}));
  EXPECT_EQ(to[0], 6);
  EXPECT_EQ(to.values().data(), memory);
}

TEST(Batches, DatasetsMustFit) {
  EXPECT_THROW(check_dataset({Tensor<float>({2, 3}), Tensor<float>({3})}), ShapeError);
  EXPECT_THROW(check_dataset({Tensor<float>({0, 3}), Tensor<float>({0})}), UsageError);
  EXPECT_THROW(check_dataset({}), UsageError);
  check_dataset({Tensor<float>({2, 3}), Tensor<float>({2})});
}

}  // namespace
}  // namespace imago
