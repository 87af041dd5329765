// imago completion: a script for the user's shell, made of the commands as they are.

#include "completion.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "commands.h"
#include "imago/error.h"
#include "output.h"

namespace imago::cli {

std::vector<std::string> words_after(const OptionReference& option) {
  return option.takes_type() ? type_names() : option.choices();
}

Command add_completion(CLI::App& program) {
  CLI::App* command = program.add_subcommand("completion", "Print a script that completes commands in a shell");
  const auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "The shell")->type_name("bash|zsh|fish")->required();
  command->footer(
      "An installed imago has them in place. For one that is not installed, put the first line into ~/.bashrc, or "
      "write the others where the shell looks.\n"
      "Examples:\n  eval \"$(imago completion bash)\"\n  imago completion zsh > ~/.zfunc/_imago\n"
      "  imago completion fish > ~/.config/fish/completions/imago.fish");
  return {command, [shell, &program] {
            const std::vector<CommandReference> commands = describe_commands(program);
            if (*shell == "bash") return print(bash_completion(commands));
            if (*shell == "zsh") return print(zsh_completion(commands));
            if (*shell == "fish") return print(fish_completion(commands));
            throw UsageError("no completion for '" + printable(*shell) + "'; there is bash, zsh and fish");
          }};
}

}  // namespace imago::cli
