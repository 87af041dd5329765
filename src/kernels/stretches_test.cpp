#include "kernels/stretches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace imago::kernels {
namespace {

TEST(Stretches, AreTheWholeLine) {
  for (const std::size_t length : {1u, 2u, 7u, 1000u, 123457u, 100'000'000u}) {
    for (const std::size_t threads : {1u, 2u, 3u, 16u, 1024u}) {
      for (const std::size_t shortest : {1u, 100u, 65536u}) {
        const Stretches stretches(length, threads, shortest);
        std::vector<Stretches::Range> ranges;
        for (std::size_t i = 0; i < stretches.count(); ++i) ranges.push_back(stretches[i]);
        std::sort(ranges.begin(), ranges.end(),
                  [](auto a, auto b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
        std::size_t at = 0;
        for (const Stretches::Range range : ranges) {
          ASSERT_EQ(range.begin, at) << length << ", " << threads << ", " << shortest;
          at = range.end;
        }
        ASSERT_EQ(at, length) << length << ", " << threads << ", " << shortest;
      }
    }
  }
}

TEST(Stretches, LongOnesComeFirst) {
  const Stretches stretches(1'000'000, 4, 1000);
  ASSERT_EQ(stretches.count(), 28u);
  for (std::size_t i = 0; i < stretches.count(); ++i) {
    const std::size_t length = stretches[i].end - stretches[i].begin;
    if (i < 4) {
      EXPECT_EQ(length, 187'500u);
    } else {
      EXPECT_NEAR(static_cast<double>(length), 62'500 / 6.0, 1);
      EXPECT_GE(stretches[i].begin, stretches[i % 4].end);
    }
  }
}

TEST(Stretches, LittleWorkIsNotCutFurther) {
  EXPECT_EQ(Stretches(1'000'000, 1, 1).count(), 1u);
  EXPECT_EQ(Stretches(4000, 4, 1000).count(), 4u);
  EXPECT_EQ(Stretches(2 * 4 * 4000, 4, 1000).count(), 12u);
}

}  // namespace
}  // namespace imago::kernels
