// imago doctor: what this machine offers, which kernels would run on it, and what holds it back.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "commands.h"
#include "imago/system.h"
#include "output.h"

namespace imago::cli {

namespace {

using Json = nlohmann::ordered_json;

struct Options {
  bool json = false;
  int threads = 0;
};

struct Findings {
  SystemReport system;
  int threads = 0;
  double read_gb_per_s = 0;
};

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
        {"usable_cores", system.usable_cores}}},
      {"threads", findings.threads},
      {"memory",
       {{"bytes", system.memory_bytes},
        {"available_bytes", system.available_bytes},
        {"cache_bytes", system.cache_bytes},
        {"huge_pages", system.huge_pages},
        {"read_gb_per_s", findings.read_gb_per_s}}},
      {"kernel_limit", system.kernel_limit.empty() ? Json(nullptr) : Json(system.kernel_limit)},
      {"kernels", kernels},
      {"gpus", system.devices},
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
                      ? "chosen as the best of those whose instructions this CPU has"
                      : fmt::format("chosen as the best that IMAGO_KERNELS={} allows", system.kernel_limit));
  return lines;
}

std::string cache_line(const std::vector<std::uint64_t>& bytes) {
  constexpr const char* kNames[] = {"L1 data", "L2", "L3"};
  std::vector<std::string> parts;
  for (std::size_t level = 0; level < bytes.size() && level < std::size(kNames); ++level) {
    if (bytes[level] != 0) parts.push_back(fmt::format("{} {}", kNames[level], format_bytes(bytes[level])));
  }
  return parts.empty() ? "the system does not say" : join(parts, ", ");
}

std::string words_or(const std::vector<std::string>& words, std::string_view otherwise) {
  return words.empty() ? std::string(otherwise) : join(words, " ");
}

std::string counted(int count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
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
  section("CPU",
          {system.cpu,
           fmt::format("{}, {}", counted(system.usable_cores, "usable core"), counted(findings.threads, "thread")),
           "has " + words_or(system.cpu_features, "none of the instruction sets that kernels ask for"),
           "lacks " + words_or(system.absent_features, "nothing that a kernel asks for")});
  section("Caches", {cache_line(system.cache_bytes)});
  section("Memory",
          {fmt::format("{}, {} available", format_bytes(system.memory_bytes), format_bytes(system.available_bytes)),
           fmt::format("reads {:.1f} GB/s with {}", findings.read_gb_per_s, counted(findings.threads, "thread")),
           fmt::format("2 MiB pages {}", system.huge_pages ? "are given when asked for" : "are off")});
  section("Kernels", kernel_lines(system));
  section("GPUs", system.devices.empty() ? std::vector<std::string>{"none: this build computes on the CPU only"}
                                         : system.devices);
  section("Advice", system.advice.empty() ? std::vector<std::string>{"nothing is missing"} : system.advice);
  return text;
}

void examine(const Options& options) {
  set_thread_count(options.threads);
  Findings findings;
  findings.system = inspect_system();
  findings.threads = thread_count();
  findings.read_gb_per_s = measure_read_bandwidth() * 1e-9;
  options.json ? print_json(to_json(findings)) : print(to_text(findings));
}

}  // namespace

Command add_doctor(CLI::App& program) {
  CLI::App* command = program.add_subcommand("doctor", "Show what this machine offers and what holds it back");
  const auto options = std::make_shared<Options>();
  command->add_flag("--json", options->json, "Print one JSON object (default: text)");
  command->add_option("-t,--threads", options->threads, "Threads to measure with (default: 0, the cores it may use)")
      ->type_name("N")
      ->check(CLI::Range(0, 1024));
  command->footer("Examples:\n  imago doctor\n  imago doctor -t 1 --json\n  IMAGO_KERNELS=ref imago doctor");
  return {command, [options] { examine(*options); }};
}

}  // namespace imago::cli
