#pragma once

// Include this in the tests of a parser: each test of the program then has 256 MB of memory beyond what the program
// had at its start, and 2 s of processor time. A count from a file that is believed before it is checked ends in
// bad_alloc, which no parser turns into an error of its own. Sanitizers need far more memory than that, so there only
// the clock counts, and not strictly; nor does it where another processor is emulated.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstddef>
#include <ctime>
#include <fstream>
#include <string>

#include "base/parallel.h"

namespace imago::testing {

class Bounded final : public ::testing::EmptyTestEventListener {
 public:
  static constexpr rlim_t kBytes = 256 << 20;
  static constexpr double kSeconds = 2;

  void OnTestStart(const ::testing::TestInfo&) override {
    if (!kSanitized) limit_data();
    start_ = std::clock();
  }
  void OnTestEnd(const ::testing::TestInfo&) override {
    const double seconds = static_cast<double>(std::clock() - start_) / CLOCKS_PER_SEC;
    EXPECT_LT(seconds, kIsSlowed ? 20 * kSeconds : kSeconds) << "of processor time";
    rlimit limit{};
    ::getrlimit(RLIMIT_DATA, &limit);
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_DATA, &limit);
  }

 private:
#ifdef IMAGO_SANITIZED
  static constexpr bool kSanitized = true;
#else
  static constexpr bool kSanitized = false;
#endif
#ifdef IMAGO_EMULATED
  static constexpr bool kIsSlowed = true;
#else
  static constexpr bool kIsSlowed = kSanitized;
#endif

  /// RLIMIT_AS would count what the allocator reserves for each thread; this counts what can be written to.
  void limit_data() {
    if (held_ == 0) {
      parallel_for(1000, 1, [](std::size_t, std::size_t) {});  // its threads have stacks, which are not the parser's
      std::ifstream status("/proc/self/status");
      for (std::string word; status >> word;) {
        if (word == "VmData:") status >> held_;  // in KiB
      }
    }
    rlimit limit{};
    ::getrlimit(RLIMIT_DATA, &limit);
    limit.rlim_cur = static_cast<rlim_t>(held_) * 1024 + kBytes;
    ::setrlimit(RLIMIT_DATA, &limit);
  }

  std::clock_t start_ = 0;
  std::size_t held_ = 0;
};

inline const bool kIsBounded = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new Bounded);  // gtest owns it
  return true;
}();

}  // namespace imago::testing
