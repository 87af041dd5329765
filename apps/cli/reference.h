#pragma once

// The commands and their options as plain data, from which help texts, the man page and shell completions are made.

#include <map>
#include <string>
#include <string_view>
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

  bool takes_file() const;                 ///< the value is a file or folder
  std::vector<std::string> words() const;  ///< the values it can have, if these are types or listed
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

/// `text` with each of some characters replaced, for the language of a shell or of man.
std::string escaped(std::string_view text, const std::map<char, std::string_view>& replacements);

/// The text of --help for a command or the program, wrapped to the width of the terminal.
std::string help_text(const CLI::App& command);

}  // namespace imago::cli
