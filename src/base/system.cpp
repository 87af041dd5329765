#include "base/system.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <string_view>

#include "base/cpu.h"
#include "base/parallel.h"

namespace imago {

namespace fs = std::filesystem;

namespace {

/// The whole of a small file; empty if it cannot be read.
std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// The number a text starts with, spaces skipped.
std::optional<std::uint64_t> leading_number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  return value;
}

/// Bytes of a line "MemTotal:  16384 kB"; 0 without it.
std::uint64_t meminfo_bytes(const std::string& meminfo, std::string_view key) {
  std::istringstream lines(meminfo);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key) || line.size() == key.size() || line[key.size()] != ':') continue;
    return leading_number(std::string_view(line).substr(key.size() + 1)).value_or(0) * 1024;
  }
  return 0;
}

/// Folders that bind this process under cgroup v2, from its own up to the top of the hierarchy.
std::vector<fs::path> control_groups(const fs::path& root) {
  std::vector<fs::path> folders;
  const fs::path top = root / "sys/fs/cgroup";
  std::istringstream lines(read_text(root / "proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("0::/")) continue;
    fs::path below = fs::path(line.substr(3)).relative_path();
    for (; !below.empty(); below = below.parent_path()) folders.push_back(top / below);
  }
  folders.push_back(top);
  return folders;
}

/// "150000 100000" is one and a half cores, "max 100000" no limit.
std::optional<double> cores_of_quota(const std::string& cpu_max) {
  const std::size_t space = cpu_max.find(' ');
  if (space == std::string::npos) return std::nullopt;
  const auto quota = leading_number(cpu_max);
  const auto period = leading_number(std::string_view(cpu_max).substr(space));
  if (!quota || !period || *quota == 0 || *period == 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

void apply_control_groups(const fs::path& root, Machine& machine) {
  for (const fs::path& group : control_groups(root)) {
    if (const auto cores = cores_of_quota(read_text(group / "cpu.max"))) {
      machine.core_quota = std::min(machine.core_quota.value_or(*cores), *cores);
    }
    const auto limit = leading_number(read_text(group / "memory.max"));  // "max" is not a number
    if (!limit) continue;
    machine.memory_bytes = std::min(machine.memory_bytes, *limit);
    const std::uint64_t used = leading_number(read_text(group / "memory.current")).value_or(0);
    machine.available_bytes = std::min(machine.available_bytes, *limit - std::min(used, *limit));
  }
}

/// Bytes of "48K" or "32M".
std::uint64_t cache_size(const std::string& text) {
  const std::uint64_t number = leading_number(text).value_or(0);
  if (text.find('K') != std::string::npos) return number << 10;
  if (text.find('M') != std::string::npos) return number << 20;
  return number;
}

std::vector<std::uint64_t> cache_sizes(const fs::path& root) {
  std::vector<std::uint64_t> sizes(3, 0);
  for (int index = 0; index < 16; ++index) {
    const fs::path folder = root / "sys/devices/system/cpu/cpu0/cache" / ("index" + std::to_string(index));
    const auto level = leading_number(read_text(folder / "level"));
    if (!level) break;
    if (*level < 1 || *level > sizes.size() || read_text(folder / "type").starts_with("Instruction")) continue;
    sizes[*level - 1] = cache_size(read_text(folder / "size"));
  }
  return sizes;
}

/// Cores in a list of ranges such as "0-3,8".
int count_ranges(const std::string& text) {
  std::uint64_t count = 0;
  std::istringstream ranges(text);
  for (std::string range; std::getline(ranges, range, ',');) {
    const auto first = leading_number(range);
    if (!first) return 0;
    const std::size_t dash = range.find('-');
    const auto last = dash == std::string::npos ? first : leading_number(std::string_view(range).substr(dash + 1));
    if (!last || *last < *first || *last - *first >= (1u << 20)) return 0;
    count += *last - *first + 1;
  }
  return static_cast<int>(std::min<std::uint64_t>(count, 1u << 20));
}

/// The first number of "0.42 0.37 0.30 1/123 4567".
std::optional<double> load_average(const std::string& text) {
  double load = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), load);
  if (error != std::errc{} || !std::isfinite(load) || load < 0) return std::nullopt;
  return load;
}

constexpr std::size_t kGrain = std::size_t{1} << 18;  // words, 2 MiB: no page is shared by two threads

/// Eight independent sums, so that the loop waits for memory and not for its own additions. It prefetches as kernels
/// do; otherwise they would be faster than the limit that this measures.
std::uint64_t sum_words(const std::uint64_t* words, std::size_t begin, std::size_t end) noexcept {
  const std::size_t ahead = prefetch_distance() / sizeof(std::uint64_t);
  std::uint64_t sums[8] = {};
  for (std::size_t i = begin; i < end; i += 8) {
    if (ahead != 0) __builtin_prefetch(words + i + ahead, 0, 2);
    for (std::size_t lane = 0; lane < 8; ++lane) sums[lane] += words[i + lane];
  }
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total += sum;
  return total;
}

std::string count_cores(int count) { return fmt::format("{} core{}", count, count == 1 ? "" : "s"); }

}  // namespace

std::string_view version() noexcept { return IMAGO_VERSION; }

Machine inspect_machine(const fs::path& root) {
  Machine machine;
  const std::string meminfo = read_text(root / "proc/meminfo");
  machine.memory_bytes = meminfo_bytes(meminfo, "MemTotal");
  machine.available_bytes = meminfo_bytes(meminfo, "MemAvailable");
  apply_control_groups(root, machine);
  machine.cache_bytes = cache_sizes(root);
  const std::string huge = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled");
  machine.huge_pages = huge.find("[always]") != std::string::npos || huge.find("[madvise]") != std::string::npos;
  machine.cores = count_ranges(read_text(root / "sys/devices/system/cpu/online"));
  machine.load = load_average(read_text(root / "proc/loadavg"));
  machine.governor = read_text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  while (machine.governor.ends_with('\n')) machine.governor.pop_back();
  return machine;
}

std::vector<std::string> machine_advice(const Machine& machine, int allowed_cores, int threads) {
  std::vector<std::string> lines;
  if (machine.cores > allowed_cores) {
    lines.push_back(fmt::format("this process may run on {} of {}; 'taskset' or the container's settings allow more",
                                allowed_cores, count_cores(machine.cores)));
  }
  int usable = allowed_cores;
  if (machine.core_quota && *machine.core_quota < allowed_cores) {
    usable = std::max(1, static_cast<int>(std::ceil(*machine.core_quota)));
    lines.push_back(
        fmt::format("a control group grants the time of {:.2g} cores, though {} are there; raise its cpu.max",
                    *machine.core_quota, allowed_cores));
  }
  if (threads > usable) {
    lines.push_back(fmt::format("{} threads share {} usable cores; use {} threads", threads, usable, usable));
  }
  // Other work slows us down once it needs more than the cores that we leave idle.
  const double idle = machine.cores - machine.load.value_or(0);
  if (machine.cores > 0 && idle < 0.75 * usable) {
    lines.push_back(
        fmt::format("a load average of {:.1f} on {} says that other work takes its share; measure again when it is "
                    "done, or use fewer threads",
                    *machine.load, count_cores(machine.cores)));
  }
  if (machine.governor == "powersave" || machine.governor == "conservative") {
    lines.push_back(
        fmt::format("the clock is governed by '{}', which is slow to rise; 'cpupower frequency-set -g performance' as "
                    "root lifts it",
                    machine.governor));
  }
  if (!machine.huge_pages) {
    lines.push_back(
        "transparent huge pages are off; 'echo madvise > /sys/kernel/mm/transparent_hugepage/enabled' as root speeds "
        "up large weights");
  }
  if (machine.memory_bytes > 0 && machine.available_bytes < machine.memory_bytes / 8) {
    lines.push_back(
        "less than an eighth of the memory is free; models that do not fit are read from disk again and again, so end "
        "other programs first");
  }
  return lines;
}

void read_all(std::span<const std::byte> bytes) {
  const std::uint64_t* words = reinterpret_cast<const std::uint64_t*>(bytes.data());
  parallel_for(bytes.size() / sizeof(std::uint64_t), kGrain, [&](std::size_t begin, std::size_t end) {
    // Without a visible use of the sum the compiler drops the loads.
    [[maybe_unused]] volatile std::uint64_t sink = sum_words(words, begin, end);
  });
}

double measure_read_bandwidth() {
  constexpr std::size_t kBytes = std::size_t{256} << 20;  // larger than any cache
  constexpr std::size_t kWords = kBytes / sizeof(std::uint64_t);
  // Timed in chunks far shorter than a time slice, so that on a busy machine some of them have the cores to themselves.
  // All other chunks are read before a chunk is read again, so no cache holds it.
  constexpr std::size_t kChunkWords = kWords / 8;
  constexpr int kPasses = 6;

  const std::unique_ptr<void, void (*)(void*)> memory(std::aligned_alloc(kGrain * sizeof(std::uint64_t), kBytes),
                                                      std::free);
  if (!memory) throw std::bad_alloc();
  ::madvise(memory.get(), kBytes, MADV_HUGEPAGE);  // a request: without huge pages the measurement is lower, and right
  std::uint64_t* const words = static_cast<std::uint64_t*>(memory.get());
  // The threads that will read a range also write it first, so that it is on their memory node.
  parallel_for(kWords, kGrain,
               [&](std::size_t begin, std::size_t end) { std::fill(words + begin, words + end, std::uint64_t{1}); });

  double best = std::numeric_limits<double>::infinity();
  for (std::size_t first = 0; first < kPasses * kWords; first += kChunkWords) {
    const auto start = std::chrono::steady_clock::now();
    read_all(std::as_bytes(std::span(words + first % kWords, kChunkWords)));
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::min(best, elapsed.count());
  }
  return static_cast<double>(kChunkWords * sizeof(std::uint64_t)) / best;
}

}  // namespace imago
