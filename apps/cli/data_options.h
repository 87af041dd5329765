#pragma once

// Data that a network is judged on.

#include <cstddef>
#include <optional>
#include <string>

#include "imago/train.h"

namespace CLI {
class App;
}

namespace imago::cli {

struct DataOptions {
  std::string path, labels, loss;
  std::size_t targets = 1;
  bool one_hot = false;
};

/// `--data` and what says how to read it.
void add_data(CLI::App& command, DataOptions& options);

/// None without --data. Throws as load_dataset, and FormatError for values that are not finite.
std::optional<Dataset> load_data(const DataOptions& options);
/// None: what fits the data. Throws UsageError.
std::optional<Loss> loss_of(const DataOptions& options);

}  // namespace imago::cli
