#pragma once

// softmax(q · kᵀ / sqrt(width)) · v of one head, causal, and its exact gradient. Everything here is a dense tile
// [steps][width] of one head of one sequence.
//
// The queries are taken in blocks of kBlockRows, each against the keys up to its own end: that leaves out nearly half
// of the products which the mask would throw away, and keeps every operand dense. The probabilities of a block are
// [rows of the block][keys up to its end], block after block.

#include <cstddef>
#include <span>

namespace imago::layers {

/// 64 queries of 128 keys and their gradients, 64 KiB, stay in a second-level cache while they are worked on; smaller
/// blocks save fewer products than their calls cost.
inline constexpr std::size_t kBlockRows = 64;

/// Probabilities of all blocks; of the largest block. Throw ShapeError on overflow.
std::size_t probability_count(std::size_t steps);
std::size_t block_probability_count(std::size_t steps);

struct HeadTile {
  std::size_t steps, width;
  std::span<const float> q, k, v;  ///< each [steps][width]
};

/// out[steps][width]. `probabilities` has probability_count values, all of which are kept, or block_probability_count,
/// which serve as scratch.
void attend(const HeadTile& head, std::span<float> probabilities, std::span<float> out);

struct HeadGradient {
  std::span<const float> out;  ///< given
  std::span<float> q;          ///< written
  std::span<float> k, v;       ///< added to: heads of queries may share them
};

/// `probabilities` are those that `attend` kept; `scratch` has block_probability_count values.
void attend_backward(const HeadTile& head, std::span<const float> probabilities, std::span<float> scratch,
                     const HeadGradient& gradient);

}  // namespace imago::layers
