#include "weights/once_map.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <stdexcept>
#include <thread>
#include <vector>

#include "imago/weights.h"

namespace imago {
namespace {

using VersionCache = OnceMap<Scheme, Version>;

VersionCache::Pointer make_int8() {
  return std::make_shared<const Version>(DType::int8, WeightShape{.rows = 1, .cols = 4}, host_device()->allocate(4),
                                         std::vector<float>{0.5f}, std::vector<float>(), 4, false);
}

VersionCache::Pointer make_int4() {
  return std::make_shared<const Version>(DType::int4, WeightShape{.rows = 1, .cols = 4}, host_device()->allocate(2),
                                         std::vector<float>{0.5f}, std::vector<float>(), 4, false);
}

TEST(OnceMap, MakesOnceAndKeeps) {
  VersionCache cache;
  EXPECT_EQ(cache.find(DType::int8), nullptr);
  int made = 0;
  const auto make = [&] {
    ++made;
    return make_int8();
  };
  const auto first = cache.get(DType::int8, make);
  EXPECT_EQ(cache.get(DType::int8, make), first);
  EXPECT_EQ(cache.find(DType::int8), first);
  EXPECT_EQ(cache.find(DType::int4), nullptr);
  EXPECT_EQ(made, 1);
}

TEST(OnceMap, FailureIsNotCached) {
  VersionCache cache;
  EXPECT_THROW(cache.get(DType::int8, []() -> VersionCache::Pointer { throw std::runtime_error("full"); }),
               std::runtime_error);
  EXPECT_EQ(cache.find(DType::int8), nullptr);
  EXPECT_EQ(cache.bytes(), 0u);
  EXPECT_NE(cache.get(DType::int8, make_int8), nullptr);
}

TEST(OnceMap, PutReplacesAndDropForgets) {
  VersionCache cache;
  const auto made = cache.get(DType::int8, make_int8);
  const auto other = make_int8();
  cache.put(DType::int8, other);
  EXPECT_EQ(cache.find(DType::int8), other);
  cache.put(DType::int4, make_int4());
  EXPECT_EQ(cache.bytes(), 4 + 4 + 2 + 4u);
  cache.drop(DType::int8);
  EXPECT_EQ(cache.find(DType::int8), nullptr);
  EXPECT_NE(cache.find(DType::int4), nullptr);
  cache.clear();
  EXPECT_EQ(cache.bytes(), 0u);
  EXPECT_EQ(made->count(), 4u) << "who holds a version keeps it";
}

TEST(OnceMap, DropsWhatAConditionHoldsFor) {
  VersionCache cache;
  cache.put(DType::int8, make_int8());
  cache.put(DType::int4, make_int4());
  cache.drop_if([](const Scheme& scheme) { return scheme == Scheme(DType::int8); });
  EXPECT_EQ(cache.find(DType::int8), nullptr);
  EXPECT_NE(cache.find(DType::int4), nullptr);
}

TEST(OnceMap, ConcurrentCallersShareOneMaking) {
  VersionCache cache;
  std::atomic<int> made{0};
  std::latch start(4);
  std::vector<VersionCache::Pointer> got(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      got[i] = cache.get(DType::int8, [&] {
        ++made;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return make_int8();
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 1);
  for (const auto& version : got) EXPECT_EQ(version, got[0]);
}

// Each maker waits for the other to have begun: were they made one after the other, this would never end.
TEST(OnceMap, DifferentSchemesAreMadeSideBySide) {
  VersionCache cache;
  std::latch both(2);
  std::thread other([&] {
    cache.get(DType::int4, [&] {
      both.arrive_and_wait();
      return make_int4();
    });
  });
  cache.get(DType::int8, [&] {
    both.arrive_and_wait();
    return make_int8();
  });
  other.join();
  EXPECT_NE(cache.find(DType::int4), nullptr);
  EXPECT_NE(cache.find(DType::int8), nullptr);
}

TEST(OnceMap, ReadersDoNotWaitForAVersionInTheMaking) {
  VersionCache cache;
  std::latch begun(1);
  std::latch finish(1);
  std::thread maker([&] {
    cache.get(DType::int8, [&] {
      begun.count_down();
      finish.wait();
      return make_int8();
    });
  });
  begun.wait();
  EXPECT_EQ(cache.find(DType::int8), nullptr);
  EXPECT_EQ(cache.bytes(), 0u);
  finish.count_down();
  maker.join();
  EXPECT_NE(cache.find(DType::int8), nullptr);
}

TEST(OnceMap, WaitersSeeTheFailureOfTheMaker) {
  VersionCache cache;
  std::latch begun(1);
  std::atomic<bool> waiter_failed{false};
  std::thread maker([&] {
    EXPECT_THROW(cache.get(DType::int8,
                           [&]() -> VersionCache::Pointer {
                             begun.count_down();
                             std::this_thread::sleep_for(std::chrono::milliseconds(50));
                             throw std::runtime_error("full");
                           }),
                 std::runtime_error);
  });
  begun.wait();
  try {
    cache.get(DType::int8, make_int8);  // joins the failing one, or, should it come late, makes its own
  } catch (const std::runtime_error&) {
    waiter_failed = true;
  }
  maker.join();
  EXPECT_EQ(cache.find(DType::int8) == nullptr, waiter_failed.load());
}

}  // namespace
}  // namespace imago
