#pragma once

// The command line of imago train.

#include <cstdint>
#include <string>
#include <vector>

#include "imago/train.h"

namespace CLI {
class App;
}

namespace imago::cli {

/// Names are read when the work begins, so that one of them may be wrong until then.
struct TrainCommand {
  std::string spec, data, output;
  int epochs = 10;
  std::size_t batch = 32;
  float rate = 0.01f;
  std::string optimizer = "sgd", loss, dtype, schedule = "constant";
  float momentum = 0.9f, weight_decay = 0, clip = 0, clip_norm = 0;
  std::uint64_t warmup = 0;
  double validation = 0;
  int patience = 0;
  std::uint64_t seed = 0;
  bool shuffle = true, learn_scales = false, one_hot = false, fp4_legacy = false;
  std::size_t targets = 1;
  std::string labels;
  std::vector<int> heads;
  std::size_t text_context = 0;  // 0: the data is no text
  bool text_bytes = false;
  std::uint64_t checkpoint_every = 0, max_steps = 0;
  std::string state, resume;
  std::string device;  ///< empty: the CPU
  int threads = 0;
  bool json = false, quiet = false;

  /// cross_entropy_logits for text, mse for the rest, unless it was named. Throws UsageError for unknown names.
  LossKind loss_kind() const;
  /// All but the callbacks. Throws UsageError for unknown names, and for options that make sense only with others.
  TrainOptions to_options() const;
};

void add_train_options(CLI::App& command, TrainCommand& options);

}  // namespace imago::cli
