#include "base/machine_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace imago {

namespace {

std::string count_cores(int count) { return fmt::format("{} core{}", count, count == 1 ? "" : "s"); }

}  // namespace

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
  // What others run takes away from us once there is more of it than cores without work.
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

}  // namespace imago
