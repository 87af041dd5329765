#pragma once

#include <cstddef>

#include "device/cuda/stream.h"

namespace imago::layers::cuda {

using imago::cuda::Stream;

/// Rows of a table by ids that are float32 numbers, cut off towards zero; ids outside the table, and NaN, name no row.
struct EmbeddingArgs {
  const float* ids;
  std::size_t count;
  std::size_t rows, cols;  ///< of the table
};

/// out[i] = table[ids[i]], or zeros.
void look_up(const EmbeddingArgs& args, const float* table, float* out, Stream& stream);

/// grad_table[ids[i]] += grad[i], in the order of i for each row.
void look_up_backward(const EmbeddingArgs& args, const float* grad, float* grad_table, Stream& stream);

/// The ids as rows for kernels that need them in range: row 0 for ids that name none.
void rows_of_ids(const EmbeddingArgs& args, int* rows, Stream& stream);
/// Zeros where an id names no row.
void clear_unnamed(const EmbeddingArgs& args, float* out, Stream& stream);

}  // namespace imago::layers::cuda
