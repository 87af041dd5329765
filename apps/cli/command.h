#pragma once

// What every command is written with. A command is one source file with one add_… function, listed at the end.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files.h"
#include "imago/device.h"
#include "imago/error.h"
#include "imago/files.h"
#include "imago/system.h"
#include "imago/train.h"
#include "output.h"

namespace imago::cli {

using Json = nlohmann::ordered_json;

/// A command: its options, and what it does once they are parsed.
struct Command {
  CLI::App* options;
  std::function<void()> run;
};

// ---- options that mean the same in several commands

/// An option whose value help texts call `value`.
template <class T>
CLI::Option* add_value(CLI::App& command, const std::string& names, T& target, const char* value,
                       const std::string& about) {
  return command.add_option(names, target, about)->type_name(value);
}

template <class T>
CLI::Option* add_file(CLI::App& command, const std::string& names, T& path, const std::string& about) {
  return add_value(command, names, path, "FILE", about);
}

/// A number from `least` to `most`.
template <class T, class Bound>
CLI::Option* add_number(CLI::App& command, const std::string& names, T& target, Bound least, Bound most,
                        const std::string& about, const char* value = "N") {
  return add_value(command, names, target, value, about)->check(CLI::Range(least, most));
}

/// An option whose text `parse` turns into the value; it throws UsageError for a wrong one.
template <class T, class Parse>
CLI::Option* add_parsed(CLI::App& command, const std::string& names, T& target, const Parse& parse, const char* value,
                        const std::string& about) {
  const auto read = [&target, parse](const std::string& text) {
    if (!text.empty()) target = parse(text);  // read_command_line refuses empty ones, naming the option
  };
  return command.add_option_function<std::string>(names, read, about)->type_name(value);
}

/// The same for an option with several values.
template <class T, class Parse>
CLI::Option* add_parsed(CLI::App& command, const std::string& names, std::vector<T>& targets, const Parse& parse,
                        const char* value, const std::string& about) {
  const auto read = [&targets, parse](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      if (!text.empty()) targets.push_back(parse(text));
    }
  };
  return command.add_option_function<std::vector<std::string>>(names, read, about)->type_name(value);
}

/// Values by the names that they have on the command line.
template <class T>
using Choices = std::vector<std::pair<std::string, T>>;

/// The value of the choice that `text` names. Throws UsageError that lists the choices.
template <class T>
T one_of(std::string_view option, const std::string& text, const Choices<T>& choices) {
  std::vector<std::string> known;
  for (const auto& [name, value] : choices) {
    if (name == text) return value;
    known.push_back(name);
  }
  throw UsageError(fmt::format("{} is '{}'; it can be {}", option, printable(text), join(known, ", ")));
}

/// An option with one of a few values, which help texts list.
template <class T>
CLI::Option* add_choice(CLI::App& command, const std::string& name, T& target, const Choices<T>& choices,
                        const std::string& about) {
  std::vector<std::string> known;
  for (const auto& choice : choices) known.push_back(choice.first);
  const auto parse = [name, choices](const std::string& text) { return one_of(name, text, choices); };
  return add_parsed(command, name, target, parse, join(known, "|").c_str(), about);
}

/// What most commands have.
struct CommonOptions {
  int threads = 0;
  bool json = false, quiet = false;
};

/// `--threads`, `--json` and `--quiet`.
void add_common(CLI::App& command, CommonOptions& options);
void add_threads(CLI::App& command, int& threads);
void add_json(CLI::App& command, bool& json);
void add_quiet(CLI::App& command, bool& quiet);
/// `-s,--seed N`, an unsigned 64-bit integer. `what` says what it seeds and names the default.
void add_seed(CLI::App& command, std::uint64_t& seed, const std::string& what);
void add_fp4_legacy(CLI::App& command, LoadOptions& load);
void add_granularity(CLI::App& command, Granularity& granularity, const std::string& about);
/// `--device cpu|cuda|cuda:N`; empty means the CPU.
void add_device(CLI::App& command, std::string& device);
/// The device of that name, null for the CPU. Throws UsageError for an invalid name, DeviceError for a device that does
/// not exist; both name the option.
std::shared_ptr<Device> open_chosen(const std::string& device);

/// A dataset, and what networks are judged by on it.
struct DataOptions {
  std::string path;
  DatasetOptions columns;
  std::optional<Loss> loss;  ///< none: chosen by the data
};

/// `--targets`, `--labels` and `--one-hot`; each needs the option `data`.
void add_data_columns(CLI::App& command, DatasetOptions& columns, CLI::Option* data);
/// `--data`, its columns and `--loss`, for commands that evaluate networks.
void add_data(CLI::App& command, DataOptions& options);
/// No dataset without --data. Throws like load_dataset, and for values that are not finite.
std::optional<Dataset> load_data(const DataOptions& options);
/// Throws Error, naming the first example, for values that are not finite: they make every loss NaN.
void check_finite(const Dataset& data, const std::string& file);

/// `--fast` and `--exact`; the value that `fast` has is the default.
void add_arithmetic(CLI::App& command, bool& fast);
/// "fast" or "exact", as reports name it.
const char* arithmetic(bool fast) noexcept;

// ---- the commands

/// Parses the command line. Returns the text to print if it asks for help or the version. Throws UsageError, with a
/// suggestion for a misspelled name.
std::optional<std::string> read_command_line(CLI::App& program, int argc, const char* const* argv);

/// Adds commands under a heading of the list of commands.
void add_group(CLI::App& program, std::vector<Command>& commands, const char* heading,
               std::initializer_list<Command (*)(CLI::App&)> adds);

/// The commands for language models; none in a build without them.
std::vector<Command> add_language_commands(CLI::App& program);

Command add_completion(CLI::App& program);
Command add_demo(CLI::App& program);
Command add_man(CLI::App& program);
Command add_dtypes(CLI::App& program);
Command add_doctor(CLI::App& program);
Command add_bench(CLI::App& program);
Command add_inspect(CLI::App& program);
Command add_forward(CLI::App& program);
Command add_init(CLI::App& program);
Command add_train(CLI::App& program);
Command add_compare(CLI::App& program);
Command add_sweep(CLI::App& program);
Command add_convert(CLI::App& program);
Command add_morph(CLI::App& program);
Command add_plan(CLI::App& program);
Command add_logits(CLI::App& program);
Command add_calibrate(CLI::App& program);
Command add_embed(CLI::App& program);
Command add_eval(CLI::App& program);
Command add_synth(CLI::App& program);
Command add_tokenize(CLI::App& program);
Command add_rerank(CLI::App& program);
Command add_run(CLI::App& program);
Command add_chat(CLI::App& program);
Command add_serve(CLI::App& program);

}  // namespace imago::cli
