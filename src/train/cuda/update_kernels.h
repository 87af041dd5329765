#pragma once

// One step of an optimizer on a CUDA device: the formulas of kernels::UpdateArgs, bit for bit.

#include <cstddef>

#include "device/cuda/stream.h"
#include "kernels/ops_args.h"

namespace imago::cuda {

/// What a step finds out on the way, in device memory.
struct StepFigures {
  double loss;
  double squares;  ///< of all clipped gradient elements; NaN if one is not finite
};

/// partials[i] = sums of squares of clipped elements of a piece of the gradient, NaN if one is NaN or infinite;
/// square_partials(count) of them.
std::size_t square_partials(std::size_t count);
void clipped_squares(const float* gradient, std::size_t count, float bound, double* partials, Stream& stream);

/// The step, with arrays in device memory, unless a figure is not finite. `norm_bound`: of the whole gradient's length,
/// 0: none; args.factor is not read.
void update(const kernels::UpdateArgs& args, const StepFigures* figures, float norm_bound, Stream& stream);

}  // namespace imago::cuda
