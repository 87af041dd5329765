#pragma once

// Reading the command line, with errors of one line that name what to do.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace imago::cli {

/// Reads the command line into `program`. Returns the text to print when it asks for help or the version.
/// Throws UsageError, with a suggestion where a spelling is near, for anything it does not understand.
std::optional<std::string> read_command_line(CLI::App& program, int argc, const char* const* argv);

/// The candidate that `text` most likely meant; empty if none is near.
std::string nearest(std::string_view text, const std::vector<std::string>& candidates);

}  // namespace imago::cli
