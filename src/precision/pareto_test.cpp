#include "precision/measures.h"

#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

namespace imago::precision {
namespace {

/// For each of {bytes, cost}.
std::vector<bool> front_of(std::initializer_list<std::pair<std::uint64_t, double>> figures) {
  std::vector<SweepPoint> points;
  for (const auto& [bytes, cost] : figures) points.push_back({.name = "", .bytes = bytes, .relative_rmse = cost});
  mark_front(points);
  std::vector<bool> front;
  for (const SweepPoint& point : points) front.push_back(point.on_front);
  return front;
}

TEST(ParetoFront, IsWhatNothingBeats) {
  EXPECT_EQ(front_of({{8, 0.1}, {4, 0.5}, {6, 0.5}, {4, 0.6}, {2, 3}, {9, 0.1}}),
            (std::vector<bool>{true, true, false, false, true, false}));
}

TEST(ParetoFront, EqualsStandSideBySide) {
  EXPECT_EQ(front_of({{4, 0.5}, {4, 0.5}, {5, 0.4}}), (std::vector<bool>{true, true, true}));
}

TEST(ParetoFront, CostsThatAreNotFiniteAreNeverOnIt) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(front_of({{1, infinity}, {2, std::nan("")}, {3, 1}}), (std::vector<bool>{false, false, true}));
  EXPECT_TRUE(front_of({}).empty());
}

}  // namespace
}  // namespace imago::precision
