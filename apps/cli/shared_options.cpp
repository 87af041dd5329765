#include "shared_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>

#include "imago/error.h"
#include "output.h"

namespace imago::cli {

namespace {

/// CLI11 takes 2^65 for the largest number and -1 for the one before 0.
std::string seed_problem(const std::string& text) {
  std::uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  const bool good = error == std::errc() && end == text.data() + text.size();
  return good ? "" : fmt::format("'{}' is no whole number from 0 to 2^64 - 1", printable(text));
}

}  // namespace

void add_threads(CLI::App& command, int& threads) {
  command.add_option("-t,--threads", threads, "Threads to compute with (default: 0, the cores it may use)")
      ->type_name("N")
      ->check(CLI::Range(0, 1024));
}

void add_json(CLI::App& command, bool& json) {
  command.add_flag("--json", json, "Print one JSON object (default: text)");
}

void add_quiet(CLI::App& command, bool& quiet) {
  command.add_flag("-q,--quiet", quiet, "No progress on standard error (default: shown on a terminal)");
}

void add_seed(CLI::App& command, std::uint64_t& seed, const std::string& what) {
  command.add_option("-s,--seed", seed, what)->type_name("N")->check(seed_problem);
}

void add_fp4_legacy(CLI::App& command, bool& legacy) {
  command.add_flag("--fp4-legacy", legacy, "Read fp4 codes as the original engine does (default: as OCP defines them)");
}

void add_device(CLI::App& command, std::string& device) {
  command
      .add_option("--device", device,
                  "Where to compute: cpu, cuda or, for a further GPU, cuda:1; 'imago doctor' lists them (default: cpu)")
      ->type_name("DEVICE");
}

std::shared_ptr<Device> open_chosen(const std::string& device) {
  if (device.empty()) return nullptr;
  try {
    std::shared_ptr<Device> opened = open_device(device);
    return opened->is_host() ? nullptr : opened;
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("--device: {}", error.what()));
  } catch (const DeviceError& error) {
    throw DeviceError(fmt::format("--device {}: {}", printable(device), error.what()));
  }
}

}  // namespace imago::cli
