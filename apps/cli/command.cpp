#include "command.h"

#include <charconv>
#include <cmath>

namespace imago::cli {

namespace {

/// CLI11 reads 2^65 as the largest number, and -1 as that too.
std::string seed_problem(const std::string& text) {
  std::uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  const bool good = error == std::errc() && end == text.data() + text.size();
  return good ? "" : fmt::format("'{}' is not a whole number from 0 to 2^64 - 1", printable(text));
}

}  // namespace

void add_common(CLI::App& command, CommonOptions& options) {
  add_threads(command, options.threads);
  add_json(command, options.json);
  add_quiet(command, options.quiet);
}

void add_threads(CLI::App& command, int& threads) {
  add_number(command, "-t,--threads", threads, 0, 1024, "Number of threads (default: 0, one per usable core)");
}

void add_json(CLI::App& command, bool& json) {
  command.add_flag("--json", json, "Print one JSON object (default: text)");
}

void add_quiet(CLI::App& command, bool& quiet) {
  command.add_flag("-q,--quiet", quiet, "No progress on standard error (default: shown on a terminal)");
}

void add_seed(CLI::App& command, std::uint64_t& seed, const std::string& what) {
  add_value(command, "-s,--seed", seed, "N", what)->check(seed_problem);
}

void add_fp4_legacy(CLI::App& command, LoadOptions& load) {
  const auto choose = [&load] { load.fp4 = Fp4Table::legacy; };
  command.add_flag_callback("--fp4-legacy", choose,
                            "Read fp4 codes as the original engine does (default: as OCP defines them)");
}

void add_granularity(CLI::App& command, Granularity& granularity, const std::string& about) {
  add_choice(command, "--granularity", granularity,
             {{"tensor", Granularity::tensor}, {"row", Granularity::row}, {"block", Granularity::group}}, about);
}

void add_device(CLI::App& command, std::string& device) {
  add_value(command, "--device", device, "DEVICE",
            "Where to compute: cpu, cuda, or cuda:1 for a second GPU; 'imago doctor' lists them (default: cpu)");
}

std::shared_ptr<Device> open_chosen(const std::string& device) {
  if (device.empty()) return nullptr;
  try {
    std::shared_ptr<Device> opened = open_device(device);
    return opened->is_host() ? nullptr : opened;
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("--device: {}", error.what()));
  } catch (const DeviceError& error) {
    throw DeviceError(fmt::format("--device {}: {}", printable(device), error.what()));
  }
}

void add_data_columns(CLI::App& command, DatasetOptions& columns, CLI::Option* data) {
  add_number(command, "--targets", columns.target_columns, 1, 1 << 24,
             "CSV: how many of the last columns are targets (default: 1)")
      ->needs(data);
  add_file(command, "--labels", columns.labels, "IDX: the labels (default: the file beside the images)")->needs(data);
  command.add_flag("--one-hot", columns.one_hot, "Turn class numbers into rows with a single 1 (default: keep them)")
      ->needs(data);
}

const char* arithmetic(bool fast) noexcept { return fast ? "fast" : "exact"; }

void add_arithmetic(CLI::App& command, bool& fast) {
  command.add_flag("--fast,!--exact", fast,
                   fmt::format("Round activations to int8 or bfloat16 where the type of a matrix allows it, or keep "
                               "them in float32 (default: {}, on every device)",
                               arithmetic(fast)));
}

void add_data(CLI::App& command, DataOptions& options) {
  CLI::Option* data =
      add_file(command, "--data", options.path, "Networks: CSV, IDX images, or safetensors with 'x' and 'y'");
  add_data_columns(command, options.columns, data);
  const auto parse = [](const std::string& text) {
    Loss loss{.kind = parse_loss(text)};
    if (loss.kind != LossKind::multi_head_softmax_ce) return loss;
    throw UsageError("--loss multi_head_softmax_ce is only for training; use mse or cross_entropy_logits");
  };
  add_parsed(command, "--loss", options.loss, parse, "NAME",
             "mse, cross_entropy or cross_entropy_logits (default: cross entropy if targets are classes)")
      ->needs(data);
}

std::optional<Dataset> load_data(const DataOptions& options) {
  if (options.path.empty()) return std::nullopt;
  Dataset data = blame(options.path, [&] { return load_dataset(options.path, options.columns); });
  check_finite(data, options.path);
  return data;
}

void add_group(CLI::App& program, std::vector<Command>& commands, const char* heading,
               std::initializer_list<Command (*)(CLI::App&)> adds) {
  for (const auto add : adds) {
    commands.push_back(add(program));
    commands.back().options->group(heading);
  }
}

void check_finite(const Dataset& data, const std::string& file) {
  const auto check = [&](const Tensor<float>& values, std::string_view what) {
    const auto wrong = std::ranges::find_if_not(values.values(), [](float value) { return std::isfinite(value); });
    if (wrong == values.values().end()) return;
    const auto place = static_cast<std::size_t>(wrong - values.values().begin());
    const std::size_t example = place / (values.size() / values.shape()[0]);
    throw Error(ErrorKind::format,
                fmt::format("{}: the {} of example {} (counted from 0) hold {}; leave it out or replace it", file, what,
                            example, *wrong));
  };
  check(data.x, "inputs");
  check(data.y, "targets");
}

}  // namespace imago::cli
