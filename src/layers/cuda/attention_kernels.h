#pragma once

// Heads of MultiHeadAttention between the rows of a projection and dense tiles [sequence][head][step][value], and the
// causal softmax between the products of those tiles.

#include <cstddef>

#include "device/cuda/stream.h"

namespace imago::layers::cuda {

using imago::cuda::Stream;

struct HeadTiles {
  std::size_t sequences, steps, heads, head_values;
  std::size_t row_stride;       ///< from a token's row to the next
  const float* norm = nullptr;  ///< weights of an RMS norm; null: none
  std::size_t norm_stride = 0;  ///< from a head's weights to the next's: 0 if all share them
  double eps = 0;
  const float* rope = nullptr;  ///< [positions][rotary]: cosines, then sines; null: none
  std::size_t rotary = 0;
};

/// tiles[sequence][head][step] = rotated(normed(rows[sequence · steps + step][head])); `rows` points to the first head.
void gather_heads(const HeadTiles& shape, const float* rows, float* tiles, Stream& stream);
/// Copies tiles back into rows, without norm and rotation.
void scatter_heads(const HeadTiles& shape, const float* tiles, float* rows, Stream& stream);
/// From the gradient of tiles to that of the `rows` that gather_heads took.
void scatter_gradients(const HeadTiles& shape, const float* grad_tiles, const float* rows, float* grad_rows,
                       Stream& stream);

/// scores[row][u] = softmax over u ≤ row % steps of factor · scores, and 0 after it.
void causal_softmax(float* scores, std::size_t rows, std::size_t steps, float factor, Stream& stream);

}  // namespace imago::layers::cuda
