#pragma once

// One head between the rows of a projection, [tokens][all heads], and the tile that the core works on, [steps][width]:
// on the way a head is normalised and turned, its gradient is turned back.

#include <cstddef>
#include <span>

#include "kernels/ops.h"

namespace imago::layers {

/// RoPE as spec/layers.md §4.1 has it. An odd head turns all values but its last.
kernels::RopeTable attention_rope(std::size_t head_values, double base, std::size_t positions);

/// What happens to a head after its projection.
struct HeadTransform {
  std::span<const float> norm;               ///< weights of its RMS norm; empty: none
  double eps = 0;                            ///< of the norm
  const kernels::RopeTable* rope = nullptr;  ///< null: none
};

/// A head's part of consecutive rows: values i of row t at first[t · stride + i].
struct HeadRows {
  const float* first;
  std::size_t stride;
};

/// Row t stands at position t.
void gather_head(const HeadRows& from, std::size_t steps, std::size_t width, const HeadTransform& transform,
                 float* tile);

/// Without a transform: tiles back into rows.
void scatter_head(const float* tile, std::size_t steps, std::size_t width, float* first, std::size_t stride);

/// From the gradient of the tile that `gather_head` made of `from` to the gradient of those rows, which lie like them.
void scatter_gradient(const float* grad_tile, const HeadRows& from, std::size_t steps, std::size_t width,
                      const HeadTransform& transform, float* grad_first);

}  // namespace imago::layers
