#pragma once

// softmax(q · kᵀ / sqrt(width)) · v of one head, causal, and its exact gradient, on dense tiles [steps][width] of one
// head of one sequence; and how heads get into tiles and out of them.
//
// Queries are multiplied in blocks of kBlockRows, each with the keys up to its own end: that leaves out nearly half of
// the products, which the mask would discard, and keeps every operand dense. The probabilities of a block are
// [rows of the block][keys up to its end], block after block.

#include <cstddef>
#include <span>
#include <vector>

#include "layers/layer_functions.h"

namespace imago::layers {

/// 64 queries of 128 keys and their gradients, 64 KiB, stay in a second-level cache while they are worked on; smaller
/// blocks save fewer products than their calls cost.
inline constexpr std::size_t kBlockRows = 64;

/// How many probabilities all blocks have, and the largest block. Throw ShapeError on overflow.
std::size_t probability_count(std::size_t steps);
std::size_t block_probability_count(std::size_t steps);

template <class T>
struct HeadTileOf {
  std::size_t steps, width;
  std::span<const T> q, k, v;  ///< each [steps][width]
};
using HeadTile = HeadTileOf<float>;

/// out[steps][width]. `probabilities` has probability_count values, all of which are kept, or block_probability_count,
/// which serve as scratch.
void attend(const HeadTile& head, std::span<float> probabilities, std::span<float> out);
void attend(const HeadTileOf<double>& head, std::span<double> probabilities, std::span<double> out);

struct HeadGradient {
  std::span<const float> out;  ///< given
  std::span<float> q;          ///< written
  std::span<float> k, v;       ///< added to: heads of queries may share them
};

/// `probabilities` are those that `attend` kept; `scratch` has block_probability_count values.
void attend_backward(const HeadTile& head, std::span<const float> probabilities, std::span<float> scratch,
                     const HeadGradient& gradient);

/// The pair (j, j + d/2) of a head of d values turns by t / base^(2j/d) at position t. An odd head keeps its last
/// value. Computed in double; immutable.
template <class T>
struct AttentionTable {
  /// Throws ShapeError on overflow.
  AttentionTable(std::size_t head_values, double base, std::size_t positions);
  /// Cosines of all pairs, then their sines.
  std::span<const T> at(std::size_t position) const noexcept {
    return std::span(cos_sin).subspan(position * 2 * pairs, 2 * pairs);
  }

  std::size_t head_values;
  double base;
  std::size_t positions;
  std::size_t pairs = head_values / 2;
  std::vector<T> cos_sin;
};

/// What happens to a head after its projection.
template <class T>
struct HeadTransform {
  std::span<const float> norm;               ///< weights of its RMS norm; empty: none
  double eps = 0;                            ///< of the norm
  const AttentionTable<T>* table = nullptr;  ///< of its rotation; null: none
};

/// A head's part of consecutive rows: values i of row t at first[t · stride + i].
template <class T>
struct HeadRows {
  const T* first;
  std::size_t stride;
};

/// Copies a head out of the rows of a projection, [tokens][all heads], into a tile, normalised and turned on the way.
/// Row t is at position t.
template <class T>
void gather_head(const HeadRows<T>& from, std::size_t steps, std::size_t width, const HeadTransform<T>& transform,
                 T* tile);

/// Copies a tile back into rows, without a transform.
template <class T>
void scatter_head(const T* tile, std::size_t steps, std::size_t width, T* first, std::size_t stride);

/// Turns the gradient of the tile that `gather_head` made of `from` into the gradient of those rows, laid out like
/// them.
void scatter_gradient(const float* grad_tile, const HeadRows<float>& from, std::size_t steps, std::size_t width,
                      const HeadTransform<float>& transform, float* grad_first);

}  // namespace imago::layers
