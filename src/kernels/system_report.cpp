// imago/system.h: the machine of base/system.h and the kernels that would run on it.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/cpu.h"
#include "base/parallel.h"
#include "base/system.h"
#include "imago/system.h"
#include "kernels/codec.h"

namespace imago {

namespace {

std::vector<KernelChoice> codec_choices(CpuFeatures allowed) {
  std::vector<KernelChoice> choices;
  for (const char* operation : {"encode", "decode"}) {
    const auto add = [&](Format format) {
      choices.push_back({operation, std::string(format.name()), kernels::choose_codec(format, allowed).name});
    };
    for (const DTypeInfo& type : kDTypes) add(type.id);
    for (const BlockFormatInfo& block : kBlockFormats) add(block.id);
  }
  return choices;
}

std::vector<std::string> advice(const SystemReport& report, const Machine& machine, CpuFeatures allowed) {
  std::vector<std::string> lines;
  if (allowed != host_cpu_features()) {
    lines.push_back(fmt::format("IMAGO_KERNELS={} keeps faster kernels of this CPU from being used; unset it",
                                report.kernel_limit));
  } else if (allowed == kNoFeatures && !known_cpu_features().empty()) {
    lines.push_back(
        "this CPU has none of the instruction sets that the fast kernels need; the plain C++ ones will run");
  }
  if (!machine.huge_pages) {
    lines.push_back(
        "transparent huge pages are off; 'echo madvise > /sys/kernel/mm/transparent_hugepage/enabled' as root speeds "
        "up large weights");
  }
  if (thread_count() > report.usable_cores) {
    lines.push_back(fmt::format("{} threads share {} usable cores; use {} threads", thread_count(), report.usable_cores,
                                report.usable_cores));
  }
  return lines;
}

}  // namespace

SystemReport inspect_system() {
  const CpuFeatures allowed = allowed_cpu_features();
  const Machine machine = inspect_machine();
  SystemReport report;
  report.cpu = cpu_model_name();
  for (const CpuFeatureName& feature : known_cpu_features()) {
    const bool present = (host_cpu_features() & feature.bit) != 0;
    (present ? report.cpu_features : report.absent_features).emplace_back(feature.name);
  }
  if (const char* limit = std::getenv("IMAGO_KERNELS")) report.kernel_limit = limit;
  report.usable_cores = usable_cores();
  report.memory_bytes = machine.memory_bytes;
  report.available_bytes = machine.available_bytes;
  report.cache_bytes = machine.cache_bytes;
  report.huge_pages = machine.huge_pages;
  report.kernels = codec_choices(allowed);
  report.advice = advice(report, machine, allowed);
  return report;
}

}  // namespace imago
