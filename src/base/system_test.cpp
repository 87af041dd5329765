#include "base/system.h"

#include <gtest/gtest.h>

#include "base/parallel.h"
#include "imago/error.h"
#include "imago/system.h"
#include "testing/temp_dir.h"

namespace imago {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

TEST(Machine, ReadsMemoryCachesAndPages) {
  const testing::TempDir root;
  root.write("proc/meminfo", "MemTotal:       2048 kB\nMemFree: 1 kB\nMemAvailable:   1024 kB\n");
  root.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  const std::string cache = "sys/devices/system/cpu/cpu0/cache/";
  root.write(cache + "index0/level", "1\n");
  root.write(cache + "index0/type", "Data\n");
  root.write(cache + "index0/size", "48K\n");
  root.write(cache + "index1/level", "1\n");
  root.write(cache + "index1/type", "Instruction\n");
  root.write(cache + "index1/size", "32K\n");
  root.write(cache + "index2/level", "3\n");
  root.write(cache + "index2/type", "Unified\n");
  root.write(cache + "index2/size", "32M\n");

  root.write("sys/devices/system/cpu/online", "0-3,8,10-11\n");
  root.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  root.write("proc/loadavg", "1.25 0.37 0.30 1/123 4567\n");

  const Machine machine = inspect_machine(root.path());
  EXPECT_EQ(machine.cores, 7);
  EXPECT_EQ(machine.governor, "powersave");
  EXPECT_EQ(machine.load, 1.25);
  EXPECT_EQ(machine.memory_bytes, 2 * kMiB);
  EXPECT_EQ(machine.available_bytes, 1 * kMiB);
  EXPECT_EQ(machine.cache_bytes, (std::vector<std::uint64_t>{48 << 10, 0, 32 * kMiB}));
  EXPECT_TRUE(machine.huge_pages);
  EXPECT_FALSE(machine.core_quota);
}

TEST(Machine, TheTightestControlGroupOfThePathCounts) {
  const testing::TempDir root;
  root.write("proc/meminfo", "MemTotal: 4096 kB\nMemAvailable: 3072 kB\n");
  root.write("proc/self/cgroup", "4:memory:/elsewhere\n0::/outer/inner\n");
  const std::string groups = "sys/fs/cgroup/";
  root.write(groups + "outer/inner/cpu.max", "max 100000\n");
  root.write(groups + "outer/inner/memory.max", "max\n");
  root.write(groups + "outer/cpu.max", "150000 100000\n");
  root.write(groups + "outer/memory.max", "2097152\n");
  root.write(groups + "outer/memory.current", "524288\n");
  root.write(groups + "cpu.max", "400000 100000\n");

  const Machine machine = inspect_machine(root.path());
  EXPECT_EQ(machine.core_quota, 1.5);
  EXPECT_EQ(machine.memory_bytes, 2 * kMiB);
  EXPECT_EQ(machine.available_bytes, 2 * kMiB - kMiB / 2);
}

TEST(Machine, WhatIsMissingOrMalformedStaysUnknown) {
  const testing::TempDir root;
  root.write("proc/meminfo", "MemTotal\nMemAvailable: lots\nMemTotalHuge: 5 kB\n");
  root.write("sys/devices/system/cpu/online", "0-\n");
  root.write("proc/loadavg", "nan\n");
  root.write("proc/self/cgroup", "0:://elsewhere//\n0::\n0::/\n");
  root.write("sys/fs/cgroup/cpu.max", "-1 100000\n");
  root.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  const Machine machine = inspect_machine(root.path());
  EXPECT_EQ(machine.memory_bytes, 0u);
  EXPECT_EQ(machine.available_bytes, 0u);
  EXPECT_EQ(machine.cache_bytes, (std::vector<std::uint64_t>{0, 0, 0}));
  EXPECT_FALSE(machine.huge_pages);
  EXPECT_FALSE(machine.core_quota);
  EXPECT_EQ(machine.cores, 0);
  EXPECT_FALSE(machine.load);
  EXPECT_EQ(machine.governor, "");
}

TEST(Machine, ThisOneHasMemory) {
  const Machine machine = inspect_machine();
  EXPECT_GT(machine.memory_bytes, 64 * kMiB);
  EXPECT_LE(machine.available_bytes, machine.memory_bytes);
  EXPECT_EQ(machine.cache_bytes.size(), 3u);
}

TEST(ReadBandwidth, IsThatOfRealMemory) {
  const double bytes_per_second = measure_read_bandwidth();
  EXPECT_GT(bytes_per_second, 1e8);
  EXPECT_LT(bytes_per_second, 5e12);  // beyond any machine: the loads were optimised away
}

TEST(ThreadCount, TakesEffectAndIsChecked) {
  set_thread_count(3);
  EXPECT_EQ(thread_count(), 3);
  set_thread_count(0);
  EXPECT_EQ(thread_count(), usable_cores());
  EXPECT_THROW(set_thread_count(-1), UsageError);
  EXPECT_THROW(set_thread_count(1025), UsageError);
}

}  // namespace
}  // namespace imago
