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
#include "kernels/matrix.h"

namespace imago {

namespace {

std::vector<KernelChoice> kernel_choices(CpuFeatures allowed) {
  using kernels::Arithmetic;
  std::vector<KernelChoice> choices;
  for (const char* operation : {"encode", "decode"}) {
    for (const Format format : kFormats) {
      choices.push_back({operation, std::string(format.name()), kernels::choose_codec(format, allowed).name});
    }
  }
  for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::fast}) {
    const char* const operation = arithmetic == Arithmetic::exact ? "matvec exact" : "matvec fast";
    for (const Format format : kFormats) {
      const kernels::MatrixKernel* kernel = kernels::choose_matrix_kernel(format, arithmetic, allowed);
      if (kernel != nullptr) choices.push_back({operation, std::string(format.name()), kernel->name});
    }
  }
  return choices;
}

std::vector<std::string> advice(const SystemReport& report, const Machine& machine, CpuFeatures allowed) {
  std::vector<std::string> lines = machine_advice(machine, allowed_cores(), thread_count());
  if (allowed != host_cpu_features()) {
    lines.push_back(fmt::format("IMAGO_KERNELS={} keeps faster kernels of this CPU from being used; unset it",
                                report.kernel_limit));
  } else if (allowed == kNoFeatures && !known_cpu_features().empty()) {
    lines.push_back(
        "this CPU has none of the instruction sets that the fast kernels need; the plain C++ ones will run");
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
  report.cores = machine.cores;
  report.core_quota = machine.core_quota.value_or(0);
  report.load = machine.load.value_or(0);
  report.governor = machine.governor;
  report.memory_bytes = machine.memory_bytes;
  report.available_bytes = machine.available_bytes;
  report.cache_bytes = machine.cache_bytes;
  report.huge_pages = machine.huge_pages;
  report.kernels = kernel_choices(allowed);
  report.advice = advice(report, machine, allowed);
  return report;
}

}  // namespace imago
