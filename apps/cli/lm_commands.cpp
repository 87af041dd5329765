#include <CLI/CLI.hpp>

#include "commands.h"

namespace imago::cli {

std::vector<Command> add_language_commands(CLI::App& program) {
  std::vector<Command> commands;
  for (const auto add : {add_run, add_chat, add_tokenize, add_logits, add_eval}) {
    commands.push_back(add(program));
    commands.back().options->group("Language models");
  }
  for (const auto add : {add_calibrate, add_plan}) {
    commands.push_back(add(program));
    commands.back().options->group("What precision costs");
  }
  return commands;
}

}  // namespace imago::cli
