#pragma once

// Options that mean the same in every command.

namespace CLI {
class App;
}

namespace imago::cli {

void add_threads(CLI::App& command, int& threads);
void add_json(CLI::App& command, bool& json);
void add_quiet(CLI::App& command, bool& quiet);
void add_fp4_legacy(CLI::App& command, bool& legacy);

}  // namespace imago::cli
