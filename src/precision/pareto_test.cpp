#include "precision/measures.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace imago::precision {
namespace {

TEST(ParetoFront, IsWhatNothingBeats) {
  const std::vector<SizeAndCost> points = {{8, 0.1}, {4, 0.5}, {6, 0.5}, {4, 0.6}, {2, 3}, {9, 0.1}};
  EXPECT_EQ(pareto_front(points), (std::vector<bool>{true, true, false, false, true, false}));
}

TEST(ParetoFront, EqualsStandSideBySide) {
  const std::vector<SizeAndCost> points = {{4, 0.5}, {4, 0.5}, {5, 0.4}};
  EXPECT_EQ(pareto_front(points), (std::vector<bool>{true, true, true}));
}

TEST(ParetoFront, WhatIsNoNumberIsNeverOnIt) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<SizeAndCost> points = {{1, infinity}, {2, std::nan("")}, {3, 1}};
  EXPECT_EQ(pareto_front(points), (std::vector<bool>{false, false, true}));
  EXPECT_TRUE(pareto_front({}).empty());
}

}  // namespace
}  // namespace imago::precision
