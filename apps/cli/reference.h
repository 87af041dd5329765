#pragma once

// The commands and their options as plain data, from which help texts, the man page and shell completions are made.

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace imago::cli {

struct OptionReference {
  std::vector<std::string> names;  ///< "-n", "--predict"; for a positional argument its name, "MODEL"
  std::string value;               ///< "N", "FILE", "TYPE", "f16|q8_0"; empty for flags and positional files
  std::string about;
  bool required = false;
  bool repeatable = false;

  bool takes_file() const;                   ///< the value is a file or folder
  bool takes_type() const;                   ///< the value is a type of `imago dtypes`
  std::vector<std::string> choices() const;  ///< the allowed values, if they are listed
};

struct CommandReference {
  std::string name;  ///< empty for the program itself
  std::string group;
  std::string about;
  std::vector<OptionReference> positionals, options;
  std::string notes;  ///< paragraphs
  std::vector<std::string> examples;

  /// "imago run [OPTIONS] [MODEL]"
  std::string usage() const;
};

CommandReference describe(const CLI::App& command);
/// All commands of a program, in order.
std::vector<CommandReference> describe_commands(const CLI::App& program);

/// Names of all types that weights can be converted to.
std::vector<std::string> type_names();

/// The text of --help for a command or the program, wrapped to the width of the terminal.
std::string help_text(const CLI::App& command);

}  // namespace imago::cli
