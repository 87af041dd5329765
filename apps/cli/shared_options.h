#pragma once

// Options that mean the same in every command.

#include <cstdint>
#include <memory>
#include <string>

#include "imago/device.h"

namespace CLI {
class App;
}

namespace imago::cli {

void add_threads(CLI::App& command, int& threads);
void add_json(CLI::App& command, bool& json);
void add_quiet(CLI::App& command, bool& quiet);
/// `-s,--seed N`, a whole number of 64 bits; `what` it seeds, and its default.
void add_seed(CLI::App& command, std::uint64_t& seed, const std::string& what);
void add_fp4_legacy(CLI::App& command, bool& legacy);
/// `--device cpu|cuda|cuda:N`; empty stands for the CPU.
void add_device(CLI::App& command, std::string& device);
/// The device of that name, null for the CPU. Throws UsageError for other names, DeviceError, naming the option, for
/// one that is not there.
std::shared_ptr<Device> open_chosen(const std::string& device);

}  // namespace imago::cli
