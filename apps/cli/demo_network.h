#pragma once

// The part of `imago demo` about a network: it learns to read digits and is then converted to every scalar type.

#include <cstddef>
#include <string>
#include <vector>

#include "imago/network.h"
#include "imago/train.h"

namespace imago::cli {

/// The network in one type. Accuracies are on unseen digits.
struct DemoRow {
  DType type;
  std::size_t bytes = 0;    ///< of all weights and scales
  double cosine = 0;        ///< mean over the layers, against float32
  double rounded = 0;       ///< accuracy after rounding
  double trained = 0;       ///< accuracy after a little training with rounded weights
  double microseconds = 0;  ///< of a forward pass with one digit
  bool same_bytes = false;  ///< a checkpoint is identical after reading and writing
};

struct DemoNetwork {
  Dataset seen, unseen;
  Network network;
  double seconds = 0;  ///< of the training
  double accuracy = 0;
};

/// Trains on `digits` digits and tests on two thirds as many others. REQUIRES: digits >= 30.
DemoNetwork train_demo_network(std::size_t digits, bool quiet);

/// One row for each of the 21 types.
std::vector<DemoRow> measure_demo_types(const DemoNetwork& demo, bool quiet);

/// Digits side by side, as lines of shaded characters.
std::vector<std::string> draw_digits(const Dataset& data, std::size_t first, std::size_t count);

}  // namespace imago::cli
