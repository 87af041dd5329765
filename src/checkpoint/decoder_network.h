#pragma once

// Language models as networks of layers: how one is put together, and how a network is recognised as one and becomes a
// model again that LanguageModel loads and that a Hugging Face folder can hold (docs/model-networks.md).
//
// | layer | is |
// |---|---|
// | first | Embedding: token ids in |
// | one for each block | Sequential of two branches, each followed by a Residual |
// | branch | Sequential of MultiHeadAttention, then of SwiGLU, with an RMSNorm before it or after it |
// | last but one | RMSNorm |
// | last | Dense: logits out |

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/entity.h"
#include "files/hugging_face.h"
#include "files/tensor_file.h"
#include "imago/files.h"
#include "imago/layer.h"
#include "imago/network.h"

namespace imago::checkpoint {

/// What a decoder has before and after its blocks.
struct DecoderEnds {
  Layer embedding;
  std::optional<Layer> norm = std::nullopt;
  Layer head = {};
};

Layer decoder_block(std::vector<Layer> attention, std::vector<Layer> feed_forward);
Network decoder_network(std::string id, DecoderEnds ends, std::vector<Layer> blocks);

/// The network that a decoder in an `.entity` file of the original is: its layers are blocks without residual sums, and
/// its ends are blobs. REQUIRES: entity.transformer is not empty. Throws FormatError for blobs that do not fit.
Network decoder_network(Entity entity, const std::string& path);

/// What the language model `network` would be as a folder, with the weights as they are. `path` is the file that it
/// came from. Throws FormatError for an invalid network; UnsupportedError, saying what stands in the way, for one that
/// is no such model.
files::TensorFile model_of(std::shared_ptr<const Network> network, const std::string& path);

/// A language model in any form: a folder or GGUF file as it is, and model_of a network. Throws like TensorFile::open,
/// load_network and model_of.
files::TensorFile open_model(const std::string& path, const LoadOptions& options);

}  // namespace imago::checkpoint
