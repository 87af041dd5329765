#include <fmt/format.h>

#include "completion.h"
#include "output.h"

namespace imago::cli {

namespace {

std::string quoted(const std::string& text) {
  std::string made = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') made += '\\';
    made += c;
  }
  return made + "'";
}

/// What an option or argument wants: -r a value, -F files, -f none, -a these words.
std::string what_follows(const OptionReference& option) {
  const std::vector<std::string> words = words_after(option);
  if (!words.empty()) return " -x -a " + quoted(join(words, " "));
  if (option.takes_file()) return " -r -F";
  return option.value.empty() ? "" : " -x";
}

std::string lines_of(const CommandReference& command) {
  const std::string condition = fmt::format("complete -c imago -n '__fish_seen_subcommand_from {}'", command.name);
  std::string lines;
  for (const OptionReference& option : command.options) {
    lines += condition;
    for (const std::string& name : option.names) {
      lines += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    }
    lines += fmt::format("{} -d {}\n", what_follows(option), quoted(option.about));
  }
  for (const OptionReference& argument : command.positionals) {
    const std::vector<std::string> words = words_after(argument);
    lines += condition + (words.empty() ? " -F\n" : " -a " + quoted(join(words, " ")) + "\n");
  }
  return lines;
}

}  // namespace

std::string fish_completion(const std::vector<CommandReference>& commands) {
  std::string names, lines;
  for (const CommandReference& command : commands) {
    names += (names.empty() ? "" : " ") + command.name;
    lines += fmt::format("complete -c imago -n \"not __fish_seen_subcommand_from $imago_commands\" -a {} -d {}\n",
                         command.name, quoted(command.about));
  }
  for (const CommandReference& command : commands) lines += lines_of(command);
  return fmt::format(
      "# fish completion of imago, made by 'imago completion fish'\n\n"
      "set -g imago_commands {}\n"
      "complete -c imago -f\n"
      "complete -c imago -n \"not __fish_seen_subcommand_from $imago_commands\" -s h -l help -d 'Show the help and "
      "exit'\n"
      "complete -c imago -n \"not __fish_seen_subcommand_from $imago_commands\" -l version -d 'Show the version and "
      "exit'\n{}",
      names, lines);
}

}  // namespace imago::cli
