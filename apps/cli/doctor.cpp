// imago doctor: what this machine offers, which kernels run on it, and what slows it down.

#include "command.h"

namespace imago::cli {

namespace {

struct Gpu {
  DeviceInfo info;
  double copy_gb_per_s = 0;
  std::string problem;  ///< why it could not be measured; empty if it was
};

struct Findings {
  SystemReport system;
  std::vector<Gpu> gpus;
  double read_gb_per_s = 0;
};

/// How a language model of this size would run. Each token reads every weight once, so memory is the limit.
struct ModelOutlook {
  double billions = 0;
  std::uint64_t bytes = 0;
  bool fits = false;
  double tokens_per_second = 0;  ///< at most
};

std::vector<ModelOutlook> outlooks(const Findings& findings) {
  constexpr double kBits = 4.85;  // per weight of a usual q4_k mix, embeddings included
  std::vector<ModelOutlook> made;
  for (const double billions : {0.5, 1.0, 3.0, 8.0, 14.0, 32.0, 70.0}) {
    const double bytes = billions * 1e9 * kBits / 8;
    made.push_back({billions, static_cast<std::uint64_t>(bytes),
                    bytes < 0.9 * static_cast<double>(findings.system.available_bytes),
                    findings.read_gb_per_s * 1e9 / bytes});
  }
  return made;
}

Json models_json(const Findings& findings) {
  Json list = Json::array();
  for (const ModelOutlook& model : outlooks(findings)) {
    list.push_back({{"billion_weights", model.billions},
                    {"type", "q4_k"},
                    {"bytes", model.bytes},
                    {"fits", model.fits},
                    {"tokens_per_second_at_most", model.tokens_per_second}});
  }
  return list;
}

std::vector<std::string> model_lines(const Findings& findings) {
  std::vector<std::string> lines = {"in q4_k, by number of weights; each token has to read all of them"};
  for (const ModelOutlook& model : outlooks(findings)) {
    const std::string size = fmt::format("{:>3g} billion  {:>9}", model.billions, format_bytes(model.bytes));
    if (!model.fits) {
      lines.push_back(size + "  more than the free memory");
      break;  // larger ones do not fit either
    }
    lines.push_back(fmt::format("{}  at most {:.3g} tokens/s", size, model.tokens_per_second));
  }
  return lines;
}

std::vector<Gpu> inspect_gpus() {
  std::vector<Gpu> gpus;
  for (const DeviceInfo& info : accelerators()) {
    Gpu gpu{.info = info, .copy_gb_per_s = 0, .problem = {}};
    try {
      gpu.copy_gb_per_s = measure_copy_bandwidth(*open_device(info.name)) * 1e-9;
    } catch (const DeviceError& error) {  // for example because its memory is full
      gpu.problem = error.what();
    }
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

Json gpus_json(const Findings& findings) {
  Json list = Json::array();
  for (const Gpu& gpu : findings.gpus) {
    list.push_back({{"name", gpu.info.name},
                    {"model", gpu.info.model},
                    {"architecture", gpu.info.architecture},
                    {"bytes", gpu.info.memory},
                    {"available_bytes", gpu.info.free_memory},
                    {"multiprocessors", gpu.info.multiprocessors},
                    {"clock_ghz", gpu.info.clock_ghz},
                    {"copy_gb_per_s", gpu.problem.empty() ? Json(gpu.copy_gb_per_s) : Json(nullptr)},
                    {"problem", gpu.problem.empty() ? Json(nullptr) : Json(gpu.problem)}});
  }
  return list;
}

std::vector<std::string> gpu_lines(const Findings& findings) {
  if (findings.gpus.empty()) return {"none: " + accelerator_problem()};
  std::vector<std::string> lines;
  for (const Gpu& gpu : findings.gpus) {
    lines.push_back(fmt::format("{}  {}, architecture {}, {} multiprocessors at up to {:.2f} GHz", gpu.info.name,
                                gpu.info.model, gpu.info.architecture, gpu.info.multiprocessors, gpu.info.clock_ghz));
    lines.push_back(fmt::format(
        "{}, {} available, {}", format_bytes(gpu.info.memory), format_bytes(gpu.info.free_memory),
        gpu.problem.empty() ? fmt::format("copies {:.0f} GB/s, counting reads and writes", gpu.copy_gb_per_s)
                            : "not measured: " + gpu.problem));
  }
  return lines;
}

Json to_json(const Findings& findings) {
  const SystemReport& system = findings.system;
  Json kernels = Json::array();
  for (const KernelChoice& choice : system.kernels) {
    kernels.push_back({{"operation", choice.operation}, {"format", choice.format}, {"kernel", choice.kernel}});
  }
  return {
      {"version", version()},
      {"cpu",
       {{"model", system.cpu},
        {"features", system.cpu_features},
        {"absent_features", system.absent_features},
        {"usable_cores", system.usable_cores},
        {"cores", system.cores},
        {"core_quota", system.core_quota == 0 ? Json(nullptr) : Json(system.core_quota)},
        {"load", system.load},
        {"governor", system.governor.empty() ? Json(nullptr) : Json(system.governor)}}},
      {"threads", thread_count()},
      {"memory",
       {{"bytes", system.memory_bytes},
        {"available_bytes", system.available_bytes},
        {"cache_bytes", system.cache_bytes},
        {"huge_pages", system.huge_pages},
        {"read_gb_per_s", findings.read_gb_per_s}}},
      {"kernel_limit", system.kernel_limit.empty() ? Json(nullptr) : Json(system.kernel_limit)},
      {"kernels", kernels},
      {"models", models_json(findings)},
      {"gpus", gpus_json(findings)},
      {"gpu_problem", findings.gpus.empty() ? Json(accelerator_problem()) : Json(nullptr)},
      {"advice", system.advice},
  };
}

/// The instruction set of a kernel: "avx512" of "q4_k/avx512".
std::string instructions_of(const KernelChoice& choice) { return choice.kernel.substr(choice.kernel.rfind('/') + 1); }

std::vector<std::string> kernel_lines(const SystemReport& system) {
  // operation -> instruction set -> formats
  std::map<std::string, std::map<std::string, std::vector<std::string>>> chosen;
  for (const KernelChoice& choice : system.kernels) {
    chosen[choice.operation][instructions_of(choice)].push_back(choice.format);
  }
  std::vector<std::string> lines;
  for (const auto& [operation, sets] : chosen) {
    // The most common instruction set is counted, the exceptions are named.
    const auto common = std::max_element(
        sets.begin(), sets.end(), [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    lines.push_back(fmt::format("{} with {}: {} {} types", operation, common->first,
                                sets.size() == 1 ? "all" : "all other", common->second.size()));
    for (const auto& [instructions, formats] : sets) {
      if (instructions == common->first) continue;
      lines.push_back(fmt::format("{} with {}: {}", operation, instructions, join(formats, " ")));
    }
  }
  lines.push_back(system.kernel_limit.empty()
                      ? "chosen as the best that this CPU supports"
                      : fmt::format("chosen as the best that IMAGO_KERNELS={} allows", system.kernel_limit));
  return lines;
}

std::string cache_line(const std::vector<std::uint64_t>& bytes) {
  constexpr const char* kNames[] = {"L1 data", "L2", "L3"};
  std::vector<std::string> parts;
  for (std::size_t level = 0; level < bytes.size() && level < std::size(kNames); ++level) {
    if (bytes[level] != 0) parts.push_back(fmt::format("{} {}", kNames[level], format_bytes(bytes[level])));
  }
  return parts.empty() ? "unknown" : join(parts, ", ");
}

std::string words_or(const std::vector<std::string>& words, std::string_view otherwise) {
  return words.empty() ? std::string(otherwise) : join(words, " ");
}

std::string core_line(const SystemReport& system) {
  std::string line = counted(system.usable_cores, "usable core");
  if (system.cores > 0) line += fmt::format(" of {}", system.cores);
  if (system.core_quota > 0)
    line += fmt::format(" (limited to the time of {:.2g} by a control group)", system.core_quota);
  return fmt::format("{}, {}", line, counted(thread_count(), "thread"));
}

std::string load_line(const SystemReport& system) {
  return fmt::format("load average {:.2f}{}", system.load,
                     system.governor.empty() ? "" : fmt::format(", frequency governor '{}'", system.governor));
}

std::string to_text(const Findings& findings) {
  const SystemReport& system = findings.system;
  std::string text;
  const auto section = [&](std::string_view heading, const std::vector<std::string>& lines) {
    constexpr std::size_t kIndent = 10;
    const std::string padding(kIndent, ' ');
    text += bold(heading) + padding.substr(heading.size());
    for (std::size_t i = 0; i < lines.size(); ++i) text += (i == 0 ? "" : padding) + lines[i] + "\n";
  };
  section("CPU", {system.cpu, core_line(system), load_line(system),
                  "has " + words_or(system.cpu_features, "none of the instruction sets that kernels use"),
                  "lacks " + words_or(system.absent_features, "nothing that a kernel uses")});
  section("Caches", {cache_line(system.cache_bytes)});
  section("Memory",
          {fmt::format("{}, {} available", format_bytes(system.memory_bytes), format_bytes(system.available_bytes)),
           fmt::format("reads {:.1f} GB/s with {}", findings.read_gb_per_s, counted(thread_count(), "thread")),
           fmt::format("2 MiB pages {}", system.huge_pages ? "are available" : "are off")});
  section("Kernels", kernel_lines(system));
  section("Models", model_lines(findings));
  section("GPUs", gpu_lines(findings));
  section("Advice", system.advice.empty() ? std::vector<std::string>{"nothing to improve"} : system.advice);
  return text;
}

void examine(const CommonOptions& options) {
  set_thread_count(options.threads);
  const Findings findings{inspect_system(), inspect_gpus(), measure_read_bandwidth() * 1e-9};
  options.json ? print_json(to_json(findings)) : print(to_text(findings));
}

}  // namespace

Command add_doctor(CLI::App& program) {
  CLI::App* command = program.add_subcommand("doctor", "Show what this machine offers and what slows it down");
  const auto options = std::make_shared<CommonOptions>();
  add_json(*command, options->json);
  add_threads(*command, options->threads);
  command->footer("Examples:\n  imago doctor\n  imago doctor -t 1 --json\n  IMAGO_KERNELS=ref imago doctor");
  return {command, [options] { examine(*options); }};
}

}  // namespace imago::cli
