#include "base/system.h"

#include <gtest/gtest.h>

namespace imago {
namespace {

/// Eight cores, all ours, nothing to complain about.
Machine good_machine() {
  Machine machine;
  machine.memory_bytes = 16ull << 30;
  machine.available_bytes = 12ull << 30;
  machine.huge_pages = true;
  machine.cores = 8;
  machine.load = 0.5;
  machine.governor = "schedutil";
  return machine;
}

/// The one line of advice, which starts with `words`.
void expect_only(const std::vector<std::string>& lines, const std::string& words) {
  ASSERT_EQ(lines.size(), 1u) << words;
  EXPECT_TRUE(lines.front().starts_with(words)) << lines.front();
}

TEST(MachineAdvice, AGoodMachineNeedsNone) { EXPECT_EQ(machine_advice(good_machine(), 8, 8).size(), 0u); }

TEST(MachineAdvice, NothingKnownNeedsNoneButPages) {
  expect_only(machine_advice(Machine{}, 4, 4), "transparent huge pages are off");
}

TEST(MachineAdvice, EachHindranceHasItsSentence) {
  expect_only(machine_advice(good_machine(), 2, 2), "this process may run on 2 of 8 cores");

  Machine quota = good_machine();
  quota.core_quota = 1.5;
  expect_only(machine_advice(quota, 8, 2), "a control group grants the time of 1.5 cores, though 8 are there");

  expect_only(machine_advice(good_machine(), 8, 16), "16 threads share 8 usable cores; use 8 threads");

  Machine busy = good_machine();
  busy.load = 7.2;
  expect_only(machine_advice(busy, 8, 8), "a load average of 7.2 on 8 cores");

  Machine slow = good_machine();
  slow.governor = "powersave";
  expect_only(machine_advice(slow, 8, 8), "the clock is governed by 'powersave'");

  Machine full = good_machine();
  full.available_bytes = 1ull << 30;
  expect_only(machine_advice(full, 8, 8), "less than an eighth of the memory is free");
}

TEST(MachineAdvice, ThreadsBeyondTheQuotaAreTooMany) {
  Machine quota = good_machine();
  quota.core_quota = 1.5;
  const std::vector<std::string> lines = machine_advice(quota, 8, 8);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1], "8 threads share 2 usable cores; use 2 threads");
}

}  // namespace
}  // namespace imago
