// Plain bash, without the helpers of the bash-completion package, which need not be there.

#include <fmt/format.h>

#include "completion.h"
#include "output.h"

namespace imago::cli {

namespace {

constexpr const char* kHead = R"(# bash completion of imago, made by 'imago completion bash'

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

constexpr const char* kTail = R"(  if [[ -n $files ]]; then
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -f -- "$current"))
  else
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  fi
}

complete -F _imago imago
)";

/// Lines of a case statement: for these names, that reply.
std::string case_of(const OptionReference& option) {
  const std::string names = join(option.names, "|");
  if (option.takes_file()) return fmt::format("        {}) files=1 ;;\n", names);
  return fmt::format("        {}) words='{}' ;;\n", names, join(words_after(option), " "));
}

std::string case_of(const CommandReference& command) {
  std::string values, flags;
  bool files = false;
  std::vector<std::string> words;
  for (const OptionReference& option : command.options) {
    for (const std::string& name : option.names) flags += (flags.empty() ? "" : " ") + name;
    if (!option.value.empty()) values += case_of(option);
  }
  for (const OptionReference& argument : command.positionals) {
    files = files || argument.takes_file();
    for (const std::string& word : words_after(argument)) words.push_back(word);
  }
  return fmt::format(
      "    {})\n"
      "      case $previous in\n"
      "{}"
      "        *)\n"
      "          if [[ $current == -* ]]; then words='{}'; else words='{}' files={}; fi ;;\n"
      "      esac ;;\n",
      command.name, values, flags, join(words, " "), files ? "1" : "");
}

}  // namespace

std::string bash_completion(const std::vector<CommandReference>& commands) {
  std::string names, cases;
  for (const CommandReference& command : commands) {
    names += (names.empty() ? "" : " ") + command.name;
    cases += case_of(command);
  }
  return fmt::format("{}  case $command in\n{}    help) words=$_imago_commands ;;\n  esac\n{}_imago_commands='{}'\n",
                     kHead, cases, kTail, names);
}

}  // namespace imago::cli
