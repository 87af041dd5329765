#pragma once

// Losses of spec/layers.md §6.2 and their gradients on a CUDA device. Pointers are device memory. Gradients may be
// null: not wanted. Sums run in double and in a fixed order: the same bits at every call.

#include <cstddef>

#include "device/cuda/stream.h"

namespace imago::cuda {

/// *out = factor · Σ values.
void sum_values(const double* values, std::size_t count, double factor, double* out, Stream& stream);

/// What losses of single values need: `partials` has partial_count(count) values.
struct ValueLoss {
  const float* output;
  const float* target;
  float* gradient;
  std::size_t count;
  double* partials;
  double* out;
};
std::size_t partial_count(std::size_t count);
void mean_squared_error(const ValueLoss& args, Stream& stream);
void cross_entropy(const ValueLoss& args, Stream& stream);

/// Softmax and cross entropy of rows of logits. Targets are classes, one per row, -1: not scored, or shares like the
/// logits.
struct LogitsLoss {
  const float* output;
  const float* target;
  float* gradient;
  std::size_t rows, cols;
  bool by_class;
  std::size_t scored;  ///< rows that count
  double* row_losses;  ///< [rows]
  double* out;
};
void cross_entropy_of_logits(const LogitsLoss& args, Stream& stream);

/// The same for slices of the rows: slice h from starts[h] to starts[h + 1].
struct HeadsLoss {
  const float* output;
  const float* target;
  float* gradient;
  std::size_t rows, cols;
  const int* starts;  ///< [heads + 1]
  std::size_t heads;
  const float* mask;    ///< [rows][heads], active above 0.5; null: all
  double* head_losses;  ///< [rows][heads]
  double* out;
};
void multi_head_entropy(const HeadsLoss& args, Stream& stream);

}  // namespace imago::cuda
