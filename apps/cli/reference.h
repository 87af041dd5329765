#pragma once

// The commands and their options as plain data: what help texts, the man page and shell completions are made of.

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace imago::cli {

struct OptionReference {
  std::vector<std::string> names;  ///< "-n", "--predict"; of a positional argument its name, "MODEL"
  std::string value;               ///< "N", "FILE", "TYPE", "f16|q8_0"; empty for flags and for files by position
  std::string about;
  bool required = false;
  bool repeatable = false;

  bool takes_file() const;                   ///< a file or folder is what it wants
  bool takes_type() const;                   ///< one of the types of `imago dtypes`
  std::vector<std::string> choices() const;  ///< the values there are, where they are few
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
/// All commands of a program, in its order.
std::vector<CommandReference> describe_commands(const CLI::App& program);

/// Names of all types that weights can be morphed to.
std::vector<std::string> type_names();

}  // namespace imago::cli
