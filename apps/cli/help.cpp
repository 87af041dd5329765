#include "help.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <sstream>
#include <utility>
#include <vector>

#include "output.h"
#include "reference.h"

namespace imago::cli {

namespace {

/// `text` in lines of at most `columns`, each after the first with `indent` spaces in front. Newlines stay.
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

/// A name and what it is, the latter in a column of its own.
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
