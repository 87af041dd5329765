#include "shared_options.h"

#include <CLI/CLI.hpp>

namespace imago::cli {

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

void add_fp4_legacy(CLI::App& command, bool& legacy) {
  command.add_flag("--fp4-legacy", legacy, "Read fp4 codes as the original engine does (default: as OCP defines them)");
}

}  // namespace imago::cli
