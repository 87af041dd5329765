#include "command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <regex>

#include "foreign_flags.h"
#include "help.h"
#include "imago/error.h"

namespace imago::cli {

namespace {

/// Edits between two words: letters put in, left out, changed, or swapped with their neighbour.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, changed});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

/// The command that was given, or the program itself.
const CLI::App& innermost(const CLI::App& program) {
  const std::vector<CLI::App*> chosen = program.get_subcommands();
  return chosen.empty() ? program : *chosen.front();
}

std::string help_of(const CLI::App& program) {
  const CLI::App& command = innermost(program);
  return &command == &program ? "imago --help" : fmt::format("imago {} --help", command.get_name());
}

std::vector<std::string> command_names(const CLI::App& program) {
  std::vector<std::string> names;
  for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

/// What to say about `argument`, which nothing in the command line takes.
std::string explain_unknown(const CLI::App& program, const std::string& argument) {
  const CLI::App& command = innermost(program);
  const bool is_option = argument.size() > 1 && argument.front() == '-';
  if (!is_option && &command != &program) {
    return fmt::format("'{}' is one argument too many; see '{}'", argument, help_of(program));
  }
  const std::string name = is_option ? argument.substr(0, argument.find('=')) : argument;
  const std::string near = nearest(name, is_option ? option_names(command) : command_names(program));
  return fmt::format(
      "unknown {} '{}'; {}", is_option ? "option" : "command", name,
      near.empty() ? fmt::format("see '{}'", help_of(program)) : fmt::format("did you mean '{}'?", near));
}

/// A flag of llama.cpp that made the command line unreadable: CLI11 takes "-ngl" for "-n gl".
std::optional<std::string> explain_foreign(int argc, const char* const* argv) {
  for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    if (auto text = explain_foreign_flag(argv[i])) return text;
  }
  return std::nullopt;
}

/// "imago help" and "imago help COMMAND", as other programs have it; none if that is not what was typed.
std::optional<std::string> help_command(const CLI::App& program, int argc, const char* const* argv) {
  if (argc < 2 || std::string_view(argv[1]) != "help") return std::nullopt;
  if (argc == 2) return help_text(program);
  const auto is_meant = [&](const CLI::App* command) { return command->get_name() == argv[2]; };
  const std::vector<const CLI::App*> found = program.get_subcommands(is_meant);
  if (found.empty()) throw UsageError(explain_unknown(program, argv[2]));
  return help_text(*found.front());
}

/// CLI11 takes an empty text for the number 0, and no file has an empty name; only texts may be empty.
void refuse_empty_values(const CLI::App& program) {
  for (const CLI::Option* option : innermost(program).get_options()) {
    const std::vector<std::string>& values = option->results();
    const bool text = option->get_type_name() == "TEXT" && !option->get_positional();
    if (text || option->get_items_expected_max() == 0) continue;
    if (std::find(values.begin(), values.end(), "") == values.end()) continue;
    throw UsageError(fmt::format("{}: its value is empty; see '{}'", option->get_name(), help_of(program)));
  }
}

/// What CLI11 says, in our words: which option, what was given, what it can be.
std::string in_plain_words(const std::string& problem) {
  static const std::regex kConversion("Could not convert: (\\S+) = (.*)");
  static const std::regex kRange("(\\S+): Value (.*) not in range (\\S+) to (\\S+)");
  static const std::regex kMember("(\\S+): (.*) not in \\{(.*)\\}");
  static const std::regex kMissing("(\\S+): 1 required (\\S+) missing");
  std::smatch match;
  if (std::regex_match(problem, match, kConversion)) {
    return fmt::format("{}: '{}' is no number", match.str(1), match.str(2));
  }
  if (std::regex_match(problem, match, kRange)) {
    return fmt::format("{}: '{}' is no number from {} to {}", match.str(1), match.str(2), match.str(3), match.str(4));
  }
  if (std::regex_match(problem, match, kMember)) {
    return fmt::format("{} is '{}'; it can be {}", match.str(1), match.str(2), match.str(3));
  }
  if (std::regex_match(problem, match, kMissing)) {
    return fmt::format("{} needs a value, {}", match.str(1), match.str(2).substr(0, match.str(2).find(':')));
  }
  return problem;
}

/// "--temp is given 2 times", if an option is that can be given once.
std::string explain_repeated(const CLI::App& program) {
  for (const CLI::Option* option : innermost(program).get_options()) {
    const bool once = option->get_items_expected_max() == 1 && !option->get_positional();
    if (once && option->count() > 1) return fmt::format("{} is given {} times", option->get_name(), option->count());
  }
  return {};
}

}  // namespace

std::string nearest(std::string_view text, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = (text.size() + 2) / 3 + 1;  // one slip per three letters still looks like a slip
  for (const std::string& candidate : candidates) {
    const bool begun = !text.empty() && candidate.starts_with(text);
    const std::size_t edits = begun ? 0 : distance(text, candidate);
    if (edits >= best_distance) continue;
    best_distance = edits;
    best = candidate;
  }
  return best;
}

std::optional<std::string> read_command_line(CLI::App& program, int argc, const char* const* argv) {
  if (auto help = help_command(program, argc, argv)) return help;
  std::string problem;
  try {
    program.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return help_text(innermost(program));
  } catch (const CLI::CallForVersion&) {
    return program.version() + "\n";
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string repeated = explain_repeated(program);
    problem = repeated.empty() ? in_plain_words(error.what()) : repeated;
  } catch (const CLI::ParseError& error) {
    problem = in_plain_words(error.what());
  }
  // An argument nobody takes explains more than what is missing because of it.
  const std::vector<std::string> unknown = program.remaining(true);
  if (!unknown.empty() || !problem.empty()) {
    if (const auto foreign = explain_foreign(argc, argv)) throw UsageError(*foreign);
  }
  if (!unknown.empty()) throw UsageError(explain_unknown(program, unknown.front()));
  if (!problem.empty()) throw UsageError(fmt::format("{}; see '{}'", problem, help_of(program)));
  refuse_empty_values(program);
  if (program.get_subcommands().empty()) throw UsageError("no command given; 'imago --help' lists them");
  return std::nullopt;
}

}  // namespace imago::cli
