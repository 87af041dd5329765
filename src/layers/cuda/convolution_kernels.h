#pragma once

// Convolutions as products: the taps that an output position sees become a row, and back.

#include <cstddef>

#include "device/cuda/stream.h"
#include "math/products.h"

namespace imago::layers::cuda {

using imago::cuda::Stream;

/// Values of a row: channels · kernel.
std::size_t taps_of(const math::ConvolutionExtents& e);
/// Positions of a sample's result.
std::size_t outputs_of(const math::ConvolutionExtents& e);
std::size_t inputs_of(const math::ConvolutionExtents& e);

/// rows[b · outputs + o][c · kernel + k] = x[b][c][o · stride + k - padding]; 0 outside. e.batch samples.
void gather_taps(const math::ConvolutionExtents& e, const float* x, float* rows, Stream& stream);
/// x[b][c][i] = the sum of all entries of `rows` that gather_taps would take from there.
void sum_taps(const math::ConvolutionExtents& e, const float* rows, float* x, Stream& stream);

/// to[b][j][i] = from[b][i][j] for `batch` matrices of rows × cols.
void transpose(const float* from, float* to, std::size_t batch, std::size_t rows, std::size_t cols, Stream& stream);

/// [F][C][kernel] becomes [C][F][kernel], or is added to it.
void swap_filters(const float* from, float* to, std::size_t filters, std::size_t channels, std::size_t kernel, bool add,
                  Stream& stream);

}  // namespace imago::layers::cuda
