#pragma once

// The text of --help.

#include <string>

namespace CLI {
class App;
}

namespace imago::cli {

/// Of a command, or of the program: what it does, its options with their defaults, examples; lines no wider than the
/// terminal.
std::string help_text(const CLI::App& command);

}  // namespace imago::cli
