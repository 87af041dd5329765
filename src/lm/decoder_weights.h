#pragma once

// The weights of a decoder as it computes with them: matrices in run forms, small tensors in float32.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "files/tensor_file.h"
#include "imago/lm.h"
#include "kernels/matrix.h"
#include "lm/accelerator.h"
#include "lm/embedding_table.h"
#include "models/traits.h"

namespace imago::lm {

using Vector = std::vector<float>;

struct Norm {
  Vector weight, bias;  ///< empty weight: no norm here
};

struct Projection {
  std::optional<kernels::RunMatrix> matrix;  ///< none: the architecture has no such projection
  Vector bias;
};

/// A feed-forward layer, or one expert of a mixture.
struct FeedForward {
  Projection gate, up, down;
};

struct Block {
  Norm attention_norm, attention_post_norm, feed_forward_norm, feed_forward_post_norm;
  Projection query, key, value, attention_output;
  Vector query_norm, key_norm;
  Projection router;
  std::vector<FeedForward> feed_forwards;  ///< one, or one per expert
};

struct DecoderWeights {
  models::Traits traits;
  // Of an accelerator's blocks, and of what else it has, there is nothing here.
  EmbeddingTable embedding;
  Vector positions;                   ///< [positions][width], or empty
  std::size_t learned_positions = 0;  ///< how many there are, here or there
  std::vector<Block> blocks;
  Norm output_norm;
  Projection output;
  Vector rope_divisors;                      ///< of GGUF files; empty: none
  std::unique_ptr<Accelerator> accelerator;  ///< runs the blocks behind those here and the output; null: all are here

  std::string type;              ///< of most of the weights
  std::uint64_t parameters = 0;  ///< all weights, those of a tied output once
  std::uint64_t run_bytes = 0;   ///< of the run forms, here and there
  /// What a step of one token reads of them: the run forms, of experts only those that a token uses.
  std::uint64_t step_bytes = 0;
  std::uint64_t fingerprint = 0;
  std::optional<files::TensorFile> file;  ///< kept where the embedding is read from it
};

/// Packs everything for this machine and its accelerator, where the options name one; pages of the file are given back
/// as soon as they are packed. Throws FormatError for weights that are missing, of wrong shapes or not finite,
/// UnsupportedError for types without products. `encoder`, where it is not empty, packs the matrices instead
/// (lm/matrix_encoder.h).
DecoderWeights load_decoder(files::TensorFile file, const LanguageModelOptions& options,
                            const MatrixEncoder& encoder = {});

}  // namespace imago::lm
