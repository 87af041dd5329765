#include <fmt/format.h>

#include "completion.h"
#include "output.h"

namespace imago::cli {

namespace {

/// Inside single quotes, where zsh reads brackets and colons as its own.
std::string quoted(const std::string& text) {
  std::string made;
  for (const char c : text) {
    if (c == '\'') {
      made += "'\\''";
    } else if (c == '[' || c == ']' || c == ':' || c == '\\') {
      made += std::string("\\") + c;
    } else {
      made += c;
    }
  }
  return made;
}

std::string what_follows(const OptionReference& option, const std::string& label) {
  const std::vector<std::string> words = words_after(option);
  if (option.takes_file()) return fmt::format(":{}:_files", quoted(label));
  return words.empty() ? fmt::format(":{}: ", quoted(label)) : fmt::format(":{}:({})", quoted(label), join(words, " "));
}

std::string spec_of(const OptionReference& option) {
  std::string lines;
  for (const std::string& name : option.names) {
    const std::string value = option.value.empty() ? "" : what_follows(option, option.value);
    lines += fmt::format("        '{}{}[{}]{}' \\\n", option.repeatable ? "*" : "", name, quoted(option.about), value);
  }
  return lines;
}

std::string function_of(const CommandReference& command) {
  std::string specs;
  for (const OptionReference& option : command.options) specs += spec_of(option);
  for (const OptionReference& argument : command.positionals) {
    specs += fmt::format("        '{}' \\\n", what_follows(argument, argument.names.front()));
  }
  return fmt::format("    {})\n      _arguments -S \\\n{}        && return ;;\n", command.name, specs);
}

}  // namespace

std::string zsh_completion(const std::vector<CommandReference>& commands) {
  std::string list, cases;
  for (const CommandReference& command : commands) {
    list += fmt::format("    '{}:{}'\n", command.name, quoted(command.about));
    cases += function_of(command);
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
      "# Loaded by name it is the function itself; read by 'source' it is to be registered.\n"
      "if [[ $funcstack[1] == _imago ]]; then _imago \"$@\"; else compdef _imago imago; fi\n",
      list, cases);
}

}  // namespace imago::cli
