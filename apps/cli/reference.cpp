#include "reference.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "imago/format.h"

namespace imago::cli {

namespace {

/// CLI11 joins the ranges of numbers to the name of a value; people need the name alone.
std::string value_name(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return {};
  const std::string all = option.get_type_name();
  const std::string name = all.substr(0, all.find(':'));
  if (const std::size_t open = all.find(":{"); open != std::string::npos) {  // one of a few values
    std::string values = all.substr(open + 2, all.find('}', open) - open - 2);
    std::replace(values.begin(), values.end(), ',', '|');
    return values;
  }
  if (name == "INT" || name == "UINT") return "N";
  return name == "FLOAT" ? "X" : name;
}

OptionReference describe_option(const CLI::Option& option, bool positional) {
  OptionReference made;
  if (positional) {
    made.names = {option.get_name(true)};
    if (option.get_type_name().find('|') != std::string::npos) made.value = value_name(option);
  } else {
    for (const std::string& name : option.get_snames()) made.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) made.names.push_back("--" + name);
    made.value = value_name(option);
  }
  made.about = option.get_description();
  made.required = option.get_required();
  made.repeatable = option.get_items_expected_max() > 1;
  return made;
}

/// The footer is paragraphs, and after "Examples:" one command a line.
void split_footer(const std::string& footer, CommandReference& made) {
  constexpr std::string_view kHeading = "Examples:\n";
  const std::size_t at = footer.find(kHeading);
  made.notes = footer.substr(0, at);
  while (made.notes.ends_with('\n')) made.notes.pop_back();
  if (at == std::string::npos) return;
  std::istringstream lines(footer.substr(at + kHeading.size()));
  for (std::string line; std::getline(lines, line);) made.examples.push_back(line.substr(line.find_first_not_of(' ')));
}

}  // namespace

bool OptionReference::takes_file() const {
  const bool positional = !names.front().starts_with('-');
  return value == "FILE" || (positional && value.empty());
}

bool OptionReference::takes_type() const { return value == "TYPE"; }

std::vector<std::string> OptionReference::choices() const {
  std::vector<std::string> found;
  if (value.find('|') == std::string::npos) return found;
  std::istringstream words(value);
  for (std::string word; std::getline(words, word, '|');) found.push_back(word);
  return found;
}

std::string CommandReference::usage() const {
  std::string line = name.empty() ? "imago" : "imago " + name;
  line += name.empty() ? " COMMAND [OPTIONS]" : " [OPTIONS]";
  for (const OptionReference& argument : positionals) {
    line += argument.required ? " " + argument.names.front() : " [" + argument.names.front() + "]";
  }
  for (const OptionReference& option : options) {
    if (option.required) line += " " + option.names.front() + (option.value.empty() ? "" : " " + option.value);
  }
  return line;
}

CommandReference describe(const CLI::App& command) {
  CommandReference made;
  made.name = command.get_parent() == nullptr ? "" : command.get_name();
  made.group = command.get_group();
  made.about = command.get_description();
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) made.positionals.push_back(describe_option(*option, true));
    if (!option->nonpositional()) continue;
    made.options.push_back(describe_option(*option, false));
    if (option->get_positional()) made.options.back().about = "The same as " + option->get_name(true);
  }
  split_footer(command.get_footer(), made);
  return made;
}

std::vector<CommandReference> describe_commands(const CLI::App& program) {
  std::vector<CommandReference> commands;
  for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(describe(*command));
  }
  return commands;
}

std::vector<std::string> type_names() {
  std::vector<std::string> names;
  for (const DTypeInfo& type : kDTypes) names.emplace_back(type.name);
  for (const BlockFormatInfo& block : kBlockFormats) {
    if (block.in_gguf) names.emplace_back(block.name);
  }
  return names;
}

}  // namespace imago::cli
