#include "base/parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "imago/error.h"
#include "imago/system.h"

namespace imago {
namespace {

using Ranges = std::vector<std::pair<std::size_t, std::size_t>>;

/// The ranges of one call, in order of their begin.
Ranges split(std::size_t count, std::size_t grain) {
  std::mutex mutex;
  Ranges ranges;
  parallel_for(count, grain, [&](std::size_t begin, std::size_t end) {
    std::lock_guard lock(mutex);
    ranges.emplace_back(begin, end);
  });
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

Ranges split_dynamic(std::size_t count, std::size_t grain) {
  std::mutex mutex;
  Ranges ranges;
  parallel_for_dynamic(count, grain, [&](std::size_t begin, std::size_t end) {
    std::lock_guard lock(mutex);
    ranges.emplace_back(begin, end);
  });
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

class Parallel : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_thread_count(GetParam()); }
  void TearDown() override { set_thread_count(0); }
};

TEST_P(Parallel, EveryIndexExactlyOnce) {
  for (const std::size_t count : {0, 1, 2, 3, 5, 7, 63, 64, 65, 1000, 1001, 4099}) {
    for (const std::size_t grain : {1, 2, 3, 64, 1000, 1'000'000}) {
      std::vector<std::atomic<int>> visits(count);
      parallel_for(count, grain, [&](std::size_t begin, std::size_t end) {
        ASSERT_LT(begin, end);
        for (std::size_t i = begin; i < end; ++i) visits[i].fetch_add(1);
      });
      EXPECT_TRUE(std::all_of(visits.begin(), visits.end(), [](const auto& v) { return v == 1; }))
          << count << " in grains of " << grain;
    }
  }
}

TEST_P(Parallel, RangesAreGrainsAndDependOnNothingElse) {
  for (const std::size_t count : {1, 100, 4096, 4099}) {
    const Ranges ranges = split(count, 64);
    EXPECT_LE(ranges.size(), static_cast<std::size_t>(GetParam()));
    EXPECT_EQ(ranges.size(), std::min<std::size_t>((count + 63) / 64, static_cast<std::size_t>(GetParam())));
    for (const auto& [begin, end] : ranges) {
      EXPECT_EQ(begin % 64, 0u);
      EXPECT_TRUE(end % 64 == 0 || end == count);
    }
    for (int repeat = 0; repeat < 10; ++repeat) EXPECT_EQ(split(count, 64), ranges);
  }
}

TEST_P(Parallel, DynamicRangesAreTheGrainsForAnyNumberOfThreads) {
  for (const std::size_t count : {0, 1, 63, 64, 65, 4096, 4099}) {
    for (const std::size_t grain : {std::size_t{1}, std::size_t{64}, std::size_t{1'000'000}, SIZE_MAX}) {
      Ranges expected;
      for (std::size_t begin = 0; begin < count; begin += std::min(grain, count)) {
        expected.emplace_back(begin, begin + std::min(grain, count - begin));
      }
      EXPECT_EQ(split_dynamic(count, grain), expected) << count << " in grains of " << grain;
    }
  }
}

TEST_P(Parallel, DynamicWorkGoesToWhoeverIsFree) {
  if (GetParam() == 1) GTEST_SKIP() << "there is nobody else";
  // The first grain lasts until all others are done: with a fixed split this would never end.
  constexpr int kGrains = 100;
  std::atomic<int> others = 0;
  parallel_for_dynamic(kGrains, 1, [&](std::size_t begin, std::size_t) {
    if (begin != 0) {
      ++others;
    } else {
      const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (others != kGrains - 1 && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
    }
  });
  EXPECT_EQ(others, kGrains - 1);
}

TEST_P(Parallel, DynamicNestedCallsRunInOrderOnTheirThread) {
  std::atomic<int> inner_total = 0;
  parallel_for_dynamic(8, 1, [&](std::size_t, std::size_t) {
    const std::thread::id self = std::this_thread::get_id();
    std::size_t next = 0;
    parallel_for_dynamic(10, 3, [&](std::size_t begin, std::size_t end) {
      EXPECT_EQ(std::this_thread::get_id(), self);
      EXPECT_EQ(begin, next);
      next = end;
      ++inner_total;
    });
    EXPECT_EQ(next, 10u);
  });
  EXPECT_EQ(inner_total, 8 * 4);
}

TEST_P(Parallel, DynamicExceptionsComeBackOnceAllHaveEnded) {
  for (int repeat = 0; repeat < 100; ++repeat) {
    std::atomic<int> visited = 0;
    const auto body = [&](std::size_t begin, std::size_t) {
      ++visited;
      if (begin % 7 == 0) throw std::runtime_error("every seventh");
    };
    EXPECT_THROW(parallel_for_dynamic(64, 1, body), std::runtime_error);
    EXPECT_EQ(visited, 64) << "the other grains ran";
  }
  EXPECT_EQ(split_dynamic(10, 1).size(), 10u) << "the pool survives";
}

TEST_P(Parallel, NestedCallsRunInOneRange) {
  std::atomic<int> outer_total = 0;
  std::atomic<int> inner_total = 0;
  parallel_for(16, 1, [&](std::size_t begin, std::size_t end) {
    outer_total += static_cast<int>(end - begin);
    EXPECT_EQ(pool_threads(), 1);
    int ranges = 0;
    parallel_for(100, 1, [&](std::size_t b, std::size_t e) {
      ++ranges;
      inner_total += static_cast<int>(e - b);
    });
    EXPECT_EQ(ranges, 1);
  });
  EXPECT_EQ(outer_total, 16);
  EXPECT_EQ(inner_total % 100, 0);
  EXPECT_GT(inner_total, 0);
}

TEST_P(Parallel, ExceptionsComeBackOnceAllHaveEnded) {
  for (int repeat = 0; repeat < 100; ++repeat) {
    std::atomic<int> visited = 0;
    const auto body = [&](std::size_t begin, std::size_t end) {
      visited += static_cast<int>(end - begin);
      if (begin == 0) throw std::runtime_error("range 0");
    };
    EXPECT_THROW(parallel_for(64, 1, body), std::runtime_error);
    EXPECT_EQ(visited, 64) << "the other ranges ran";
  }
  EXPECT_EQ(split(10, 1).back().second, 10u) << "the pool survives";
}

TEST_P(Parallel, NestedPartsAllRunWhateverOneThrows) {
  std::atomic<int> visited = 0;
  const auto nested = [&](std::size_t, std::size_t) {
    detail::run_parts(
        10,
        [](void* context, std::size_t index) {
          ++*static_cast<std::atomic<int>*>(context);
          if (index == 3) throw std::runtime_error("part 3");
        },
        &visited);
  };
  EXPECT_THROW(parallel_for(2, 2, nested), std::runtime_error);
  EXPECT_EQ(visited, 10);
  const int ranges = std::min(GetParam(), 8);
  EXPECT_THROW(parallel_for(8, 1, nested), std::runtime_error);
  EXPECT_EQ(visited, 10 + 10 * ranges);
}

TEST_P(Parallel, WritesAreSeenAfterwards) {
  std::vector<int> values(1000);  // plain ints: the thread sanitizer sees any missing order
  for (int round = 1; round <= 200; ++round) {
    parallel_for(values.size(), 10, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) ++values[i];
    });
    ASSERT_TRUE(std::all_of(values.begin(), values.end(), [&](int v) { return v == round; })) << round;
  }
}

TEST_P(Parallel, ShortRegionsFollowEachOther) {
  // A worker that comes late to one region meets the next: it must take no part of the first, nor one twice.
  for (std::size_t region = 0; region < 2000; ++region) {
    const std::size_t count = 1 + region % 5;
    std::vector<std::size_t> seen(count, 0);
    parallel_for_dynamic(count, 1, [&](std::size_t begin, std::size_t) { seen[begin] += region + 1; });
    ASSERT_EQ(seen, std::vector<std::size_t>(count, region + 1));
  }
}

TEST_P(Parallel, CallersMayCompete) {
  std::vector<std::thread> callers;
  std::atomic<int> total = 0;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        parallel_for(32, 1, [&](std::size_t begin, std::size_t end) { total += static_cast<int>(end - begin); });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total, 4 * 100 * 32);
}

INSTANTIATE_TEST_SUITE_P(Threads, Parallel, ::testing::Values(1, 2, 3, 8), ::testing::PrintToStringParamName());

TEST(ThreadCount, HasLimits) {
  EXPECT_THROW(set_thread_count(-1), UsageError);
  EXPECT_THROW(set_thread_count(1025), UsageError);
  set_thread_count(5);
  EXPECT_EQ(thread_count(), 5);
  EXPECT_THROW(set_thread_count(-1), UsageError);
  EXPECT_EQ(thread_count(), 5) << "a refused wish changes nothing";
  set_thread_count(0);
  EXPECT_EQ(thread_count(), usable_cores());
}

TEST(ThreadCount, WaitsForWorkUnderWay) {
  set_thread_count(4);
  std::atomic<bool> stop = false;
  std::atomic<long> wrong = 0;
  std::thread caller([&] {
    while (!stop) {
      std::atomic<int> visited = 0;
      parallel_for(64, 1, [&](std::size_t begin, std::size_t end) { visited += static_cast<int>(end - begin); });
      if (visited != 64) ++wrong;
    }
  });
  for (int i = 0; i < 100; ++i) set_thread_count(1 + i % 4);
  stop = true;
  caller.join();
  EXPECT_EQ(wrong, 0);
  set_thread_count(0);
}

TEST(ThreadCount, CannotChangeInsideParallelWork) {
  set_thread_count(2);
  EXPECT_THROW(parallel_for(2, 1, [](std::size_t, std::size_t) { set_thread_count(3); }), UsageError);
  EXPECT_EQ(thread_count(), 2);
  set_thread_count(0);
}

}  // namespace
}  // namespace imago
