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

void add_fp4_legacy(CLI::App& command, bool& legacy) {
  command.add_flag("--fp4-legacy", legacy, "Read fp4 codes as the original engine does (default: as OCP defines them)");
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

void add_data_columns(CLI::App& command, DataOptions& options, CLI::Option* data) {
  add_number(command, "--targets", options.targets, 1, 1 << 24,
             "CSV: how many of the last columns are targets (default: 1)")
      ->needs(data);
  add_file(command, "--labels", options.labels, "IDX: the labels (default: the file beside the images)")->needs(data);
  command.add_flag("--one-hot", options.one_hot, "Turn class numbers into rows with a single 1 (default: keep them)")
      ->needs(data);
}

void add_data(CLI::App& command, DataOptions& options) {
  CLI::Option* data =
      add_file(command, "--data", options.path, "Networks: CSV, IDX images, or safetensors with 'x' and 'y'");
  add_data_columns(command, options, data);
  add_value(command, "--loss", options.loss, "NAME",
            "mse, cross_entropy or cross_entropy_logits (default: cross entropy if targets are classes)")
      ->needs(data);
}

std::optional<Dataset> load_data(const DataOptions& options) {
  if (options.path.empty()) return std::nullopt;
  std::optional<Dataset> data;
  blame(options.path, [&] {
    data = load_dataset(options.path,
                        {.target_columns = options.targets, .labels = options.labels, .one_hot = options.one_hot});
    for (const Tensor<float>* values : {&data->x, &data->y}) {
      if (std::ranges::all_of(values->values(), [](float value) { return std::isfinite(value); })) continue;
      throw Error(ErrorKind::format, "some values are not finite; leave out those examples or replace the values");
    }
  });
  return data;
}

std::optional<Loss> loss_of(const DataOptions& options) {
  if (options.loss.empty()) return std::nullopt;
  const LossKind kind = parse_loss(options.loss);
  if (kind == LossKind::multi_head_softmax_ce) {
    throw UsageError("--loss multi_head_softmax_ce is only for training; use mse or cross_entropy_logits");
  }
  return Loss{.kind = kind};
}

}  // namespace imago::cli
