#pragma once

// Options that mean the same in every command.

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace imago::cli {

void add_threads(CLI::App& command, int& threads);
void add_json(CLI::App& command, bool& json);
void add_quiet(CLI::App& command, bool& quiet);
/// `-s,--seed N`, a whole number of 64 bits; `what` it seeds, and its default.
void add_seed(CLI::App& command, std::uint64_t& seed, const std::string& what);
void add_fp4_legacy(CLI::App& command, bool& legacy);

}  // namespace imago::cli
