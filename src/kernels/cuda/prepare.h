#pragma once

// Small kernels around products: activations in the form they want, results that meet afterwards.

#include <cstddef>

#include "kernels/cuda/matrix.h"

namespace imago::kernels::cuda {

/// Rows of `cols` floats at a distance of padded_cols(cols), zeros behind them.
void pad_rows(const float* x, std::size_t rows, std::size_t cols, float* to, Stream& stream);

/// What the int8 form of activations stands for: rows of padded_cols(cols) floats.
void floats_of_int8(const std::int8_t* q, const float2_pod* scales, std::size_t rows, std::size_t cols, float* to,
                    Stream& stream);

/// y = f(gate) · up with the rest of the epilogue but its bias, which the gate has already. gate, up: [tokens][rows].
struct GatedArgs {
  const float* gate;
  const float* up;
  float* y;
  std::size_t tokens, rows, y_stride;
  GpuEpilogue epilogue;
};
void finish_gated(const GatedArgs& args, Stream& stream);

}  // namespace imago::kernels::cuda
