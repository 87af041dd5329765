#pragma once

// Options that mean the same in several commands.

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "imago/device.h"
#include "imago/train.h"

namespace imago::cli {

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

}  // namespace imago::cli
