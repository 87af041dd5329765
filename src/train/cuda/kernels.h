#pragma once

// The CUDA kernels of training. Pointers are device memory. Gradients may be null. Sums run in double and in a fixed
// order: the same bits at every call.

#include <cstddef>

#include "device/cuda/stream.h"
#include "imago/format.h"
#include "kernels/ops_args.h"

namespace imago::cuda {

// ---- loss_kernels.cu: losses and their gradients, by the formulas of train/loss.cpp

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

// ---- weight_kernels.cu: one step of an optimizer by the formulas of kernels::UpdateArgs, bit for bit, and the
// rounding of masters to their dtype by those of imago/numeric.h

/// What a step computes besides the weights, in device memory.
struct StepFigures {
  double loss;
  double squares;  ///< of all clipped gradient elements; NaN if one is not finite
};

/// partials[i] = sum of squares of the clipped elements of a chunk of the gradient, NaN if one is NaN or infinite;
/// square_partials(count) of them.
std::size_t square_partials(std::size_t count);
void clipped_squares(const float* gradient, std::size_t count, float bound, double* partials, Stream& stream);

/// The step, with arrays in device memory, unless a figure is not finite. `norm_bound`: of the whole gradient's length,
/// 0: none; args.factor is not read.
void update(const kernels::UpdateArgs& args, const StepFigures* figures, float norm_bound, Stream& stream);

/// rounded = Wq of the master in float32, with scales and the zero points of unsigned types derived anew.
struct Rounding {
  const float* master;
  float* rounded;
  std::size_t count;
  DType dtype;
  std::size_t scale_group;  ///< weights that share a scale; not read for types without
  float explicit_scale;     ///< 0: derived (max|w| / Q; binary: mean|w|)
  float explicit_zero;      ///< the zero point beside it
  double* partials;         ///< rounding_partials
};
/// Doubles of scratch.
std::size_t rounding_partials(std::size_t count, std::size_t scale_group);
void round_weights(const Rounding& args, Stream& stream);

}  // namespace imago::cuda
