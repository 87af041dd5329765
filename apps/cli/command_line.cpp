// Parses the command line. Errors are one line that says what to do.

#include <initializer_list>
#include <regex>

#include "command.h"
#include "reference.h"

namespace imago::cli {

namespace {

struct Foreign {
  std::initializer_list<std::string_view> flags;
  std::string_view answer;
};

// Flags of llama.cpp's programs that imago does not have.
const Foreign kForeign[] = {
    {{"-ngl", "--n-gpu-layers"}, "use --device cuda, and --gpu-layers for part of the layers"},
    {{"-dev", "-mg", "--main-gpu"}, "use --device cuda:N"},
    {{"-sm", "--split-mode", "-ts", "--tensor-split"},
     "a model runs on one GPU, with the rest on the CPU: --gpu-layers"},
    {{"-nkvo", "--no-kv-offload"}, "keys and values are always on the device of their layer; leave it out"},
    {{"-i", "--interactive", "-if", "--interactive-first", "-cnv", "--conversation"}, "use the command imago chat"},
    {{"-no-cnv", "--no-conversation", "-st", "--single-turn"}, "'imago run' is never interactive; leave it out"},
    {{"--no-display-prompt"}, "the prompt is never repeated; leave it out"},
    {{"-sys", "-sysf", "--system-prompt-file"}, "use --system TEXT of imago chat"},
    {{"-ctk", "--cache-type-k", "-ctv", "--cache-type-v"}, "keys and values have the same type: --cache-type"},
    {{"-ub", "--ubatch-size"}, "there is only one batch size: -b"},
    {{"-fa", "--flash-attn"}, "there is only one implementation of attention; leave it out"},
    {{"--mmap", "--no-mmap", "--mlock"}, "weights are repacked into memory while they are loaded; leave it out"},
    {{"-hf", "-hfr", "--hf-repo", "-mu", "--model-url"},
     "imago downloads nothing; download the model, then name its file or folder"},
    {{"--color", "-co"}, "colours are automatic, and NO_COLOR=1 turns them off; leave it out"},
    {{"--imatrix"}, "use --importance, which reads such files; 'imago calibrate' makes them"},
    {{"--log-disable", "-lv", "--verbosity"}, "use --quiet for less output"},
};

/// Edits between two words: letters inserted, deleted, replaced or swapped with their neighbour.
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

/// The candidate that `text` most likely meant; empty if none is close.
std::string nearest(std::string_view text, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = (text.size() + 2) / 3 + 1;  // up to one typo per three letters
  for (const std::string& candidate : candidates) {
    const bool begun = !text.empty() && candidate.starts_with(text);
    const std::size_t edits = begun ? 0 : distance(text, candidate);
    if (edits >= best_distance) continue;
    best_distance = edits;
    best = candidate;
  }
  return best;
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

/// The names that an unknown argument may have meant.
std::vector<std::string> known_names(const CLI::App& command, bool options) {
  std::vector<std::string> names;
  if (!options) {
    for (const CommandReference& known : describe_commands(command)) names.push_back(known.name);
    return names;
  }
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

/// The message for an argument that no option accepts.
std::string explain_unknown(const CLI::App& program, const std::string& argument) {
  const CLI::App& command = innermost(program);
  const bool is_option = argument.size() > 1 && argument.front() == '-';
  if (!is_option && &command != &program) {
    return fmt::format("unexpected argument '{}'; see '{}'", argument, help_of(program));
  }
  const std::string name = is_option ? argument.substr(0, argument.find('=')) : argument;
  const std::string near = nearest(name, known_names(command, is_option));
  return fmt::format(
      "unknown {} '{}'; {}", is_option ? "option" : "command", name,
      near.empty() ? fmt::format("see '{}'", help_of(program)) : fmt::format("did you mean '{}'?", near));
}

/// The message for the first flag of llama.cpp in the command line. CLI11 reads "-ngl" as "-n gl", so this must be
/// checked before its errors are reported.
std::optional<std::string> explain_foreign(int argc, const char* const* argv) {
  for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    const std::string_view flag(argv[i]), name = flag.substr(0, flag.find('='));
    for (const Foreign& foreign : kForeign) {
      if (std::ranges::find(foreign.flags, name) == foreign.flags.end()) continue;
      return fmt::format("'{}' is a flag of llama.cpp: {}", name, foreign.answer);
    }
  }
  return std::nullopt;
}

/// The text of "imago help" and "imago help COMMAND"; none for other command lines.
std::optional<std::string> help_command(const CLI::App& program, int argc, const char* const* argv) {
  if (argc < 2 || std::string_view(argv[1]) != "help") return std::nullopt;
  if (argc == 2) return help_text(program);
  const auto is_meant = [&](const CLI::App* command) { return command->get_name() == argv[2]; };
  const std::vector<const CLI::App*> found = program.get_subcommands(is_meant);
  if (found.empty()) throw UsageError(explain_unknown(program, argv[2]));
  return help_text(*found.front());
}

/// CLI11 reads an empty text as the number 0, and files have no empty names; only texts may be empty.
void refuse_empty_values(const CLI::App& program) {
  for (const CLI::Option* option : innermost(program).get_options()) {
    const std::vector<std::string>& values = option->results();
    const bool text = option->get_type_name() == "TEXT" && !option->get_positional();
    if (text || option->get_items_expected_max() == 0) continue;
    if (std::find(values.begin(), values.end(), "") == values.end()) continue;
    throw UsageError(fmt::format("{}: the value is empty; see '{}'", option->get_name(), help_of(program)));
  }
}

/// Rewrites a message of CLI11: which option, what was given, what is allowed.
std::string in_plain_words(const std::string& problem) {
  static const std::pair<std::regex, const char*> kMessages[] = {
      {std::regex("Could not convert: (\\S+) = (.*)"), "$1: '$2' is not a number"},
      {std::regex("(\\S+): Value (.*) not in range (\\S+) to (\\S+)"), "$1: '$2' is not a number from $3 to $4"},
      {std::regex("(\\S+): (.*) not in \\{(.*)\\}"), "$1 is '$2'; it can be $3"},
      {std::regex("(\\S+): 1 required ([^\\s:]*)\\S* missing"), "$1 needs a value, $2"},
  };
  std::smatch match;
  for (const auto& [message, plain] : kMessages) {
    if (std::regex_match(problem, match, message)) return match.format(plain);
  }
  return problem;
}

/// "--temp is given 2 times", if an option is repeated that may not be.
std::string explain_repeated(const CLI::App& program) {
  for (const CLI::Option* option : innermost(program).get_options()) {
    const bool once = option->get_items_expected_max() == 1 && !option->get_positional();
    if (once && option->count() > 1) return fmt::format("{} is given {} times", option->get_name(), option->count());
  }
  return {};
}

}  // namespace

std::optional<std::string> read_command_line(CLI::App& program, int argc, const char* const* argv) {
  if (auto help = help_command(program, argc, argv)) return help;
  std::string problem;
  std::vector<const char*> arguments(argv, argv + argc);
  for (const char*& argument : arguments) {
    if (std::string_view(argument) == "-np") argument = "--parallel";  // CLI11 has no short names of two letters
  }
  try {
    program.parse(argc, arguments.data());
  } catch (const CLI::CallForHelp&) {
    return help_text(innermost(program));
  } catch (const CLI::CallForVersion&) {
    return program.version() + "\n";
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string repeated = explain_repeated(program);
    problem = repeated.empty() ? in_plain_words(error.what()) : repeated;
  } catch (const CLI::ParseError& error) {
    problem = in_plain_words(error.what());
  } catch (const UsageError&) {  // a value that its option refused
    if (program.remaining(true).empty()) throw;
  }
  // An unknown argument explains more than whatever is missing because of it.
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
