// imago completion: scripts for bash, zsh and fish, generated from the commands. They list every command and option and
// the values an option can have; the program is not called while a user types.

#include "command.h"
#include "reference.h"

namespace imago::cli {

namespace {

std::string names_of(const std::vector<CommandReference>& commands) {
  std::string names;
  for (const CommandReference& command : commands) names += (names.empty() ? "" : " ") + command.name;
  return names;
}

// Plain bash, which does not need the bash-completion package.
constexpr const char* kBashHead = R"(# bash completion of imago, made by 'imago completion bash'

_imago() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}
  local command=${COMP_WORDS[1]} words= files=
  # bash splits --option=value into three words
  if [[ $current == = ]]; then current=; fi
  if [[ $previous == = ]]; then previous=${COMP_WORDS[COMP_CWORD-2]}; fi
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W "$_imago_commands -h --help --version" -- "$current"))
    return
  fi
)";

constexpr const char* kBashTail = R"(  if [[ -n $files ]]; then
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -f -- "$current"))
  else
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  fi
}

complete -F _imago imago
)";

std::string bash_case(const CommandReference& command) {
  std::string values;
  bool files = false;
  std::vector<std::string> flags, words;
  for (const OptionReference& option : command.options) {
    flags.insert(flags.end(), option.names.begin(), option.names.end());
    if (option.value.empty()) continue;
    const std::string next = option.takes_file() ? "files=1" : "words='" + join(option.words(), " ") + "'";
    values += fmt::format("        {}) {} ;;\n", join(option.names, "|"), next);
  }
  for (const OptionReference& argument : command.positionals) {
    files = files || argument.takes_file();
    for (const std::string& word : argument.words()) words.push_back(word);
  }
  return fmt::format(
      "    {})\n"
      "      case $previous in\n"
      "{}"
      "        *)\n"
      "          if [[ $current == -* ]]; then words='{}'; else words='{}' files={}; fi ;;\n"
      "      esac ;;\n",
      command.name, values, join(flags, " "), join(words, " "), files ? "1" : "");
}

std::string bash_completion(const std::vector<CommandReference>& commands) {
  std::string cases;
  for (const CommandReference& command : commands) cases += bash_case(command);
  return fmt::format("{}  case $command in\n{}    help) words=$_imago_commands ;;\n  esac\n{}_imago_commands='{}'\n",
                     kBashHead, cases, kBashTail, names_of(commands));
}

std::string fish_quoted(const std::string& text) { return "'" + escaped(text, {{'\'', "\\'"}, {'\\', "\\\\"}}) + "'"; }

/// The value of an option or argument: -x one value, -r -F a file, -a one of these words.
std::string fish_value(const OptionReference& option) {
  const std::vector<std::string> words = option.words();
  if (!words.empty()) return " -x -a " + fish_quoted(join(words, " "));
  if (option.takes_file()) return " -r -F";
  return option.value.empty() ? "" : " -x";
}

std::string fish_lines(const CommandReference& command) {
  const std::string condition = fmt::format("complete -c imago -n '__fish_seen_subcommand_from {}'", command.name);
  std::string lines;
  for (const OptionReference& option : command.options) {
    lines += condition;
    for (const std::string& name : option.names) {
      lines += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    }
    lines += fmt::format("{} -d {}\n", fish_value(option), fish_quoted(option.about));
  }
  for (const OptionReference& argument : command.positionals) {
    const std::vector<std::string> words = argument.words();
    lines += condition + (words.empty() ? " -F\n" : " -a " + fish_quoted(join(words, " ")) + "\n");
  }
  return lines;
}

std::string fish_completion(const std::vector<CommandReference>& commands) {
  std::string lines;
  for (const CommandReference& command : commands) {
    lines += fmt::format("complete -c imago -n \"not __fish_seen_subcommand_from $imago_commands\" -a {} -d {}\n",
                         command.name, fish_quoted(command.about));
  }
  for (const CommandReference& command : commands) lines += fish_lines(command);
  return fmt::format(
      "# fish completion of imago, made by 'imago completion fish'\n\n"
      "set -g imago_commands {}\n"
      "complete -c imago -f\n"
      "complete -c imago -n \"not __fish_seen_subcommand_from $imago_commands\" -s h -l help -d 'Show the help and "
      "exit'\n"
      "complete -c imago -n \"not __fish_seen_subcommand_from $imago_commands\" -l version -d 'Show the version and "
      "exit'\n{}",
      names_of(commands), lines);
}

/// For text inside single quotes, where brackets and colons are special to zsh.
std::string zsh_quoted(const std::string& text) {
  return escaped(text, {{'\'', "'\\''"}, {'[', "\\["}, {']', "\\]"}, {':', "\\:"}, {'\\', "\\\\"}});
}

std::string zsh_value(const OptionReference& option, const std::string& label) {
  const std::vector<std::string> words = option.words();
  if (option.takes_file()) return fmt::format(":{}:_files", zsh_quoted(label));
  return words.empty() ? fmt::format(":{}: ", zsh_quoted(label))
                       : fmt::format(":{}:({})", zsh_quoted(label), join(words, " "));
}

std::string zsh_spec(const OptionReference& option) {
  std::string lines;
  for (const std::string& name : option.names) {
    const std::string value = option.value.empty() ? "" : zsh_value(option, option.value);
    lines +=
        fmt::format("        '{}{}[{}]{}' \\\n", option.repeatable ? "*" : "", name, zsh_quoted(option.about), value);
  }
  return lines;
}

std::string zsh_case(const CommandReference& command) {
  std::string specs;
  for (const OptionReference& option : command.options) specs += zsh_spec(option);
  for (const OptionReference& argument : command.positionals) {
    specs += fmt::format("        '{}' \\\n", zsh_value(argument, argument.names.front()));
  }
  return fmt::format("    {})\n      _arguments -S \\\n{}        && return ;;\n", command.name, specs);
}

std::string zsh_completion(const std::vector<CommandReference>& commands) {
  std::string list, cases;
  for (const CommandReference& command : commands) {
    list += fmt::format("    '{}:{}'\n", command.name, zsh_quoted(command.about));
    cases += zsh_case(command);
  }
  return fmt::format(
      "#compdef imago\n"
      "# zsh completion of imago, made by 'imago completion zsh'\n\n"
      "_imago() {{\n"
      "  local -a commands=(\n{}  )\n"
      "  if ((CURRENT == 2)); then\n"
      "    _describe command commands\n"
      "    _arguments '--help[show the help and exit]' '--version[show the version and exit]'\n"
      "    return\n"
      "  fi\n"
      "  local command=$words[2]\n"
      "  words=(\"imago $command\" \"${{(@)words[3,-1]}}\")\n"
      "  ((CURRENT -= 1))\n"
      "  case $command in\n{}"
      "    help) _describe command commands ;;\n"
      "  esac\n"
      "}}\n\n"
      "# Autoloaded, this file is the function itself; sourced, it must register it.\n"
      "if [[ $funcstack[1] == _imago ]]; then _imago \"$@\"; else compdef _imago imago; fi\n",
      list, cases);
}

}  // namespace

Command add_completion(CLI::App& program) {
  CLI::App* command = program.add_subcommand("completion", "Print a script that completes commands in a shell");
  const auto shell = std::make_shared<std::string>();
  add_value(*command, "SHELL", *shell, "bash|zsh|fish", "The shell")->required();
  command->footer(
      "An installed imago has them in place. Otherwise put the first line into ~/.bashrc, or write the others where "
      "the shell looks.\n"
      "Examples:\n  eval \"$(imago completion bash)\"\n  imago completion zsh > ~/.zfunc/_imago\n"
      "  imago completion fish > ~/.config/fish/completions/imago.fish");
  return {command, [shell, &program] {
            const std::vector<CommandReference> commands = describe_commands(program);
            if (*shell == "bash") return print(bash_completion(commands));
            if (*shell == "zsh") return print(zsh_completion(commands));
            if (*shell == "fish") return print(fish_completion(commands));
            throw UsageError("no completion for '" + printable(*shell) + "'; use bash, zsh or fish");
          }};
}

}  // namespace imago::cli
