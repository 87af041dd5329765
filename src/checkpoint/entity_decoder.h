#pragma once

// Matrices of decoder layers as `.entity` files may pack them: Q4_0 blocks and ternary words.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/entity.h"
#include "imago/layer.h"
#include "imago/numeric.h"

namespace imago::checkpoint {

/// A matrix blob of a layer. For Q4_0 the `key` says which: 200 … 203 are Wq, Wk, Wv, Wo, 100 … 102 are Wg, Wu, Wd;
/// ternary blobs carry their place themselves.
struct DecoderMatrix {
  int key = 0;
  const EntityBlob* blob = nullptr;
};

/// All weights of `layer` from its packed matrices and its biases (empty: zeros), as a float32 master. Checks every
/// size before it allocates. Throws UsageError or ShapeError for what does not fit.
void install_decoder_matrices(Layer& layer, std::span<const DecoderMatrix> matrices, std::span<const float> biases);

/// The shapes of the matrices, checked as above but for the codes; `biases` is their number.
std::vector<Shape> measure_decoder_matrices(const LayerConfig& config, std::span<const DecoderMatrix> matrices,
                                            std::size_t biases);

}  // namespace imago::checkpoint
