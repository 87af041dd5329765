#pragma once

// What every command is written with. A command is one source file with one add_… function, listed at the end.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
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
#include "progress.h"

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

/// The value of the choice that `text` names. Throws UsageError that lists the choices.
template <class T>
T one_of(std::string_view option, const std::string& text, const std::vector<std::pair<std::string, T>>& choices) {
  std::string known;
  for (const auto& [name, value] : choices) {
    if (name == text) return value;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", name);
  }
  throw UsageError(fmt::format("{} {}: choose one of {}", option, text, known));
}

void add_threads(CLI::App& command, int& threads);
void add_json(CLI::App& command, bool& json);
void add_quiet(CLI::App& command, bool& quiet);
/// `-s,--seed N`, an unsigned 64-bit integer. `what` says what it seeds and names the default.
void add_seed(CLI::App& command, std::uint64_t& seed, const std::string& what);
void add_fp4_legacy(CLI::App& command, bool& legacy);
/// `--device cpu|cuda|cuda:N`; empty means the CPU.
void add_device(CLI::App& command, std::string& device);
/// The device of that name, null for the CPU. Throws UsageError for an invalid name, DeviceError for a device that does
/// not exist; both name the option.
std::shared_ptr<Device> open_chosen(const std::string& device);

/// How to read a dataset.
struct DataOptions {
  std::string path, labels, loss;
  std::size_t targets = 1;
  bool one_hot = false;
};

/// `--targets`, `--labels` and `--one-hot`; each needs the option `data`.
void add_data_columns(CLI::App& command, DataOptions& options, CLI::Option* data);
/// `--data`, its columns and `--loss`, for commands that evaluate networks.
void add_data(CLI::App& command, DataOptions& options);
/// No dataset without --data. Throws like load_dataset, and FormatError for values that are not finite.
std::optional<Dataset> load_data(const DataOptions& options);
/// None: chosen by the data. Throws UsageError.
std::optional<Loss> loss_of(const DataOptions& options);

// ---- the commands

/// Parses the command line. Returns the text to print if it asks for help or the version. Throws UsageError, with a
/// suggestion for a misspelled name.
std::optional<std::string> read_command_line(CLI::App& program, int argc, const char* const* argv);

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
Command add_train(CLI::App& program);
Command add_compare(CLI::App& program);
Command add_sweep(CLI::App& program);
Command add_convert(CLI::App& program);
Command add_morph(CLI::App& program);
Command add_plan(CLI::App& program);
Command add_logits(CLI::App& program);
Command add_calibrate(CLI::App& program);
Command add_eval(CLI::App& program);
Command add_synth(CLI::App& program);
Command add_tokenize(CLI::App& program);
Command add_run(CLI::App& program);
Command add_chat(CLI::App& program);

}  // namespace imago::cli
