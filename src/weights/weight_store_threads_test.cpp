// One store read by many threads. Meant to be run under ThreadSanitizer too.

#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <thread>
#include <vector>

#include "imago/weights.h"

namespace imago {
namespace {

constexpr std::size_t kThreads = 6;
constexpr std::size_t kCount = 40'000;  // several parts of the pool's work

/// Runs `body(index)` on all threads at once.
template <class Body>
void on_all_threads(Body body) {
  std::latch start(kThreads);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      body(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(WeightStoreThreads, OneVersionPerScheme) {
  WeightStore store(kCount);
  store.randomize(1, 1);
  std::vector<std::shared_ptr<const Version>> got(kThreads);
  on_all_threads([&](std::size_t i) { got[i] = store.morph(DType::int4); });
  for (const auto& version : got) EXPECT_EQ(version, got[0]);
  EXPECT_EQ(store.bytes(), kCount * 4 + kCount / 2 + 4);
}

TEST(WeightStoreThreads, AllSchemesFromAllThreads) {
  WeightStore store(kCount);
  store.randomize(1, 1);
  WeightStore alone(kCount);
  alone.randomize(1, 1);
  std::vector<std::vector<float>> got(kThreads * kDTypeCount);
  on_all_threads([&](std::size_t i) {
    for (std::size_t t = 0; t < kDTypeCount; ++t) {
      const DType dtype = kDTypes[(t + 3 * i) % kDTypeCount].id;
      got[i * kDTypeCount + static_cast<std::size_t>(dtype)] = store.active(dtype);
      store.find(dtype);
      store.scale(dtype);
      store.bytes();
    }
  });
  for (const DTypeInfo& type : kDTypes) {
    const std::vector<float> expected = alone.active(type.id);
    for (std::size_t i = 0; i < kThreads; ++i) {
      EXPECT_EQ(got[i * kDTypeCount + static_cast<std::size_t>(type.id)], expected) << type.name;
    }
  }
}

TEST(WeightStoreThreads, ReleasedMasterIsUnpackedOnce) {
  WeightStore store(kCount);
  store.randomize(1, 1);
  const std::vector<float> active = store.active(DType::int8);
  store.release_master(DType::int8);
  std::vector<const float*> masters(kThreads);
  on_all_threads([&](std::size_t i) {
    if (i % 2 == 0) store.morph(i % 4 == 0 ? DType::int4 : DType::fp4);
    store.has_master();
    store.bytes();
    masters[i] = store.master().data();
  });
  for (const float* master : masters) EXPECT_EQ(master, masters[0]);
  EXPECT_TRUE(std::ranges::equal(store.master(), active));
}

}  // namespace
}  // namespace imago
