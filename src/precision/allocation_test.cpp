// Allocation against all combinations of small cases.

#include "precision/allocation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace imago::precision {
namespace {

using Tensors = std::vector<std::vector<TypeOption>>;

struct Total {
  std::uint64_t bytes = 0;
  double cost = 0;
};

Total total_of(const Tensors& tensors, const std::vector<std::size_t>& choices) {
  Total total;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    total.bytes += tensors[i].at(choices.at(i)).bytes;
    total.cost += tensors[i].at(choices.at(i)).cost;
  }
  return total;
}

/// The least cost over all combinations; infinite if none fits.
double least_cost(const Tensors& tensors, std::uint64_t budget) {
  double least = INFINITY;
  std::vector<std::size_t> choices(tensors.size(), 0);
  for (;;) {
    const Total total = total_of(tensors, choices);
    if (total.bytes <= budget) least = std::min(least, total.cost);
    std::size_t i = 0;
    while (i < choices.size() && ++choices[i] == tensors[i].size()) choices[i++] = 0;
    if (i == choices.size()) return least;
  }
}

Tensors random_tensors(unsigned seed, std::uint64_t unit, std::uint64_t spread) {
  std::mt19937 generator(seed);
  Tensors tensors(1 + generator() % 5);
  for (auto& options : tensors) {
    options.resize(1 + generator() % 4);
    for (TypeOption& option : options) {
      option.bytes = unit * (1 + generator() % 40) + (spread == 0 ? 0 : generator() % spread);
      option.cost = static_cast<double>(generator() % 1000) / 100 - 1;
    }
  }
  return tensors;
}

TEST(Allocation, IsTheBestOfAllCombinations) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    const Tensors tensors = random_tensors(seed, 1024, 0);
    for (const std::uint64_t budget : {5u * 1024u, 40u * 1024u, 77u * 1024u + 100u, 400u * 1024u}) {
      const double wanted = least_cost(tensors, budget);
      const auto choices = allocate(tensors, budget);
      ASSERT_EQ(choices.has_value(), std::isfinite(wanted)) << seed;
      if (!choices) continue;
      const Total total = total_of(tensors, *choices);
      ASSERT_LE(total.bytes, budget);
      ASSERT_NEAR(total.cost, wanted, 1e-9) << seed << ' ' << budget;
    }
  }
}

TEST(Allocation, SizesWithoutCommonDivisorFitAndComeClose) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    const Tensors tensors = random_tensors(seed, 1u << 30, 1u << 20);
    const std::uint64_t budget = std::uint64_t{70} << 30;
    const double wanted = least_cost(tensors, budget);
    const auto choices = allocate(tensors, budget);
    ASSERT_EQ(choices.has_value(), std::isfinite(wanted));
    if (!choices) continue;
    const Total total = total_of(tensors, *choices);
    ASSERT_LE(total.bytes, budget);
    ASSERT_NEAR(total.cost, wanted, 1e-9) << seed;
  }
}

TEST(Allocation, TheSmallestPossibleIsFoundToTheByte) {
  const Tensors tensors = {{{1000003, 5}, {2000003, 1}}, {{77777777, 2}, {177777777, 1}}, {{13, 1}}};
  EXPECT_EQ(smallest_size(tensors), 78777793u);
  EXPECT_FALSE(allocate(tensors, 78777792));
  EXPECT_EQ(allocate(tensors, 78777793), (std::vector<std::size_t>{0, 0, 0}));
}

}  // namespace
}  // namespace imago::precision
