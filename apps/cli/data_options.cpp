#include "data_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>

#include "imago/error.h"
#include "network_files.h"

namespace imago::cli {

void add_data(CLI::App& command, DataOptions& options) {
  CLI::Option* data =
      command.add_option("--data", options.path, "Of networks: CSV, IDX images, or safetensors with 'x' and 'y'");
  data->type_name("FILE");
  command.add_option("--targets", options.targets, "CSV: the last columns, which are targets (default: 1)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 24))
      ->needs(data);
  command.add_option("--labels", options.labels, "IDX: the labels (default: the file beside the images)")
      ->type_name("FILE")
      ->needs(data);
  command.add_flag("--one-hot", options.one_hot, "Turn class numbers into rows with a single 1 (default: keep them)")
      ->needs(data);
  command
      .add_option("--loss", options.loss,
                  "mse, cross_entropy or cross_entropy_logits (default: cross-entropy where targets are classes)")
      ->type_name("NAME")
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
      throw Error(ErrorKind::format, "some values are not finite; leave those examples out or replace the values");
    }
  });
  return data;
}

std::optional<Loss> loss_of(const DataOptions& options) {
  if (options.loss.empty()) return std::nullopt;
  const LossKind kind = parse_loss(options.loss);
  if (kind == LossKind::multi_head_softmax_ce) {
    throw UsageError("--loss multi_head_softmax_ce is for training; judge by mse or cross_entropy_logits");
  }
  return Loss{.kind = kind};
}

}  // namespace imago::cli
