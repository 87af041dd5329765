#pragma once

// The forward pass of every architecture. What differs between them is in the traits and in which weights there are.

#include <cstddef>
#include <initializer_list>
#include <span>
#include <vector>

#include "base/line_vector.h"
#include "imago/lm.h"
#include "kernels/matrix.h"
#include "kernels/ops.h"
#include "lm/decoder_weights.h"
#include "lm/input_observer.h"
#include "lm/kv_cache.h"

namespace imago::lm {

/// Memory of a forward pass. Grows to the largest batch it has seen and is then used again.
struct Workspace {
  InputObserver* observer = nullptr;  ///< told of what the matrices see; null: nobody

  void show(std::initializer_list<models::Role> roles, std::size_t block, std::span<const float> seen,
            std::size_t tokens, std::size_t expert = 0) const {
    if (observer != nullptr) observer->see({roles.begin(), roles.size()}, block, expert, seen, tokens);
  }

  LineVector<float> x, normed, branch;  ///< [tokens][width]
  LineVector<float> q, k, v;            ///< [tokens][heads or kv_heads][head_values]
  LineVector<float> gate, up;           ///< [tokens][feed_forward], of experts [tokens · experts_used][…]
  std::vector<kernels::KeyRange> ranges;
  std::vector<kernels::Product> products;

  // Of experts. A slot is one token at one of its experts; slots of an expert follow each other.
  LineVector<float> scores;                  ///< [tokens][experts]
  std::vector<float> slot_weights;           ///< [tokens][experts_used]
  std::vector<std::size_t> chosen;           ///< [tokens][experts_used]: the expert
  std::vector<std::size_t> slot_of;          ///< [tokens][experts_used]: the slot
  std::vector<std::size_t> firsts;           ///< first slot of each expert, and one more: the number of slots
  LineVector<float> gathered, slot_results;  ///< [slots][width]
};

/// Tokens of a batch, of which the output reads some.
struct RowRange {
  std::size_t first = 0, count = 0;
};

/// Runs `ids` through all blocks, filling the caches behind `past`. Afterwards work.x holds what the output reads, one
/// row per token; of those that are not `read` it holds what the last block was given, whose keys and values are all
/// that comes of them there. `rope` has a position for each token; null if the model has none.
/// REQUIRES: ids are in the vocabulary, segments have room and add up to the ids, no cache comes twice; several
/// segments have one token each, and all of them are read.
void run_blocks(const DecoderWeights& weights, std::span<const TokenId> ids, RowRange read,
                std::span<const Segment> segments, const kernels::RopeTable* rope, Workspace& work);

/// The two parts of it: what goes into block 0, and the blocks of a range with what is in work.x. The second reads all
/// tokens behind its last block.
void embed_tokens(const DecoderWeights& weights, std::span<const TokenId> ids, std::span<const Segment> segments,
                  Workspace& work);
struct BlockRange {
  std::size_t begin = 0, end = 0;
};
void run_blocks(const DecoderWeights& weights, BlockRange range, std::size_t tokens, std::span<const Segment> segments,
                const kernels::RopeTable* rope, Workspace& work);

/// Logits of the rows first … first + rows - 1 of work.x: [rows][vocabulary].
void compute_logits(const DecoderWeights& weights, Workspace& work, std::size_t first, std::size_t rows,
                    std::span<float> logits);

/// Shows the observer what the output matrix would multiply for the rows of work.x.
void show_output_input(const DecoderWeights& weights, Workspace& work, std::size_t rows);

/// The feed-forward layer of block number `index`, which has experts: reads `in`, [tokens][width], writes work.branch.
void run_experts(const models::Traits& traits, const Block& block, std::size_t index, std::span<const float> in,
                 std::size_t tokens, Workspace& work);

/// The experts of tokens, from what the softmax of the router gives them ([tokens][experts], overwritten): fills
/// slot_weights, chosen, slot_of and firsts of the workspace.
void route_tokens(const models::Traits& traits, std::span<float> probabilities, std::size_t tokens, Workspace& work);

/// y = act(gate x) · (up x), or act(up x + bias) without a gate, of some rows of the batch.
kernels::Product feed_forward_product(const models::Traits& traits, const FeedForward& layer, std::span<float> y,
                                      std::span<float> up_y, std::size_t first_token, std::size_t tokens);

}  // namespace imago::lm
