#include "reference.h"

#include <sstream>

#include "command.h"
#include "imago/format.h"

namespace imago::cli {

namespace {

/// The name of a value without the range that CLI11 appends.
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

/// A footer consists of paragraphs and, after "Examples:", one command per line.
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

std::vector<std::string> OptionReference::words() const {
  std::vector<std::string> found;
  if (value == "TYPE") {
    for (const DTypeInfo& type : kDTypes) found.emplace_back(type.name);
    for (const BlockFormatInfo& block : kBlockFormats) {
      if (block.in_gguf()) found.emplace_back(block.name);
    }
  } else if (value.find('|') != std::string::npos) {
    std::istringstream choices(value);
    for (std::string word; std::getline(choices, word, '|');) found.push_back(word);
  }
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

std::string escaped(std::string_view text, const std::map<char, std::string_view>& replacements) {
  std::string made;
  for (const char c : text) {
    const auto found = replacements.find(c);
    made += found == replacements.end() ? std::string_view(&c, 1) : found->second;
  }
  return made;
}

namespace {

/// `text` in lines of at most `columns`; all but the first are indented. Newlines are kept.
std::string wrapped(const std::string& text, std::size_t columns, std::size_t indent) {
  std::string lines;
  std::istringstream paragraphs(text);
  for (std::string paragraph; std::getline(paragraphs, paragraph);) {
    if (!lines.empty()) lines += "\n" + std::string(indent, ' ');
    std::istringstream words(paragraph);
    std::size_t used = 0;
    for (std::string word; words >> word;) {
      const std::size_t size = display_width(word);
      if (used != 0 && indent + used + 1 + size > columns) {
        lines += "\n" + std::string(indent, ' ');
        used = 0;
      }
      lines += (used == 0 ? "" : " ") + word;
      used += (used == 0 ? 0 : 1) + size;
    }
  }
  return lines;
}

/// A name and its description in two columns.
std::string entry(const std::string& name, const std::string& about, std::size_t columns) {
  constexpr std::size_t kColumn = 26;
  const std::size_t size = 2 + display_width(name);
  const std::string gap = size + 2 <= kColumn ? std::string(kColumn - size, ' ') : "\n" + std::string(kColumn, ' ');
  return fmt::format("  {}{}{}\n", bold(name), gap, wrapped(about, columns, kColumn));
}

std::string spelled(const OptionReference& option) {
  std::string text = join(option.names, ", ");
  if (!option.value.empty()) text += " " + option.value;
  return text;
}

std::string commands_by_group(const CLI::App& program, std::size_t columns) {
  std::vector<std::pair<std::string, std::string>> groups;  // heading and entries, in the order they first come
  for (const CommandReference& command : describe_commands(program)) {
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == command.group; });
    if (group == groups.end()) group = groups.insert(group, {command.group, ""});
    group->second += entry(command.name, command.about, columns);
  }
  std::string text;
  for (const auto& [heading, entries] : groups) text += "\n" + heading + ":\n" + entries;
  return text;
}

}  // namespace

std::string help_text(const CLI::App& command) {
  const std::size_t columns = std::clamp<std::size_t>(terminal_columns(), 60, 100);
  const CommandReference about = describe(command);
  std::string text = wrapped(about.about + ".", columns, 0) + "\n\nUsage: " + about.usage() + "\n";
  if (about.name.empty()) text += commands_by_group(command, columns);
  if (!about.positionals.empty()) text += "\nArguments:\n";
  for (const OptionReference& argument : about.positionals) text += entry(spelled(argument), argument.about, columns);
  text += "\nOptions:\n";
  for (const OptionReference& option : about.options) text += entry(spelled(option), option.about, columns);
  if (!about.notes.empty()) text += "\n" + wrapped(about.notes, columns, 0) + "\n";
  if (!about.examples.empty()) text += "\nExamples:\n";
  for (const std::string& example : about.examples) text += "  " + example + "\n";
  return text;
}

}  // namespace imago::cli
