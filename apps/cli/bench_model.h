#pragma once

// imago bench MODEL.

#include <cstddef>

#include "model_options.h"

namespace imago::cli {

struct ModelBench {
  ModelOptions model;
  std::size_t prompt = 512, generate = 128;
  int repeats = 3;
};

/// The options of `bench` that are about models.
void add_model_bench(CLI::App& command, ModelBench& options);
/// Measures and prints. The threads are set.
void bench_language_model(const ModelBench& options, bool json);

}  // namespace imago::cli
