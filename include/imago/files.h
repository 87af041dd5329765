#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "imago/data.h"
#include "imago/network.h"
#include "imago/numeric.h"

namespace imago {

// ---- networks

struct LoadOptions {
  bool eager = false;            ///< copy the file to memory first; network disks are always read so
  Fp4Table fp4 = Fp4Table::ocp;  ///< legacy: fp4 codes as the original reads them, for comparisons with it
  std::optional<std::uint64_t> seed = std::nullopt;  ///< architecture files get fresh weights from it; else none
};

/// Whether `path` is a network of layers: a checkpoint or architecture JSON, an `.entity` file, or a safetensors or
/// GGUF file that save_network wrote. Throws IoError, FormatError.
bool holds_network(const std::string& path);

/// A network in any of these forms, told by content. All settings are kept as they stand, and codes of packed weights
/// too, so that saving gives back the same bytes. Throws IoError, FormatError; UnsupportedError for forms that hold no
/// network of layers.
Network load_network(const std::string& path, const LoadOptions& options = {});

/// Writes `.json` (checkpoint), `.entity`, `.safetensors` or `.gguf` (a tensor for each layer with weights, named after
/// its path, and the settings in the metadata), by the extension. The file appears whole or not at all. Throws
/// UsageError for another extension, IoError.
void save_network(const Network& network, const std::string& path);

/// How tensors become layers.
struct ImportOptions {
  std::optional<DType> dtype = std::nullopt;  ///< decoders: of attention and SwiGLU; the others keep their own
  int heads = 1;                              ///< heads of attention that is found by its shapes alone
  /// Tensors, by their place in the order of their names, and the types of the layers they begin.
  std::vector<std::pair<std::size_t, LayerType>> hints = {};
  bool eager = false;  ///< as in LoadOptions
};

/// A network made of tensors. A decoder becomes one that takes token ids and gives logits: an Embedding, a Sequential
/// with residual sums for each block, an RMSNorm and a Dense; its `files` are those of the tokenizer.
struct ImportedNetwork {
  Network network;
  std::vector<std::string> unmatched = {};  ///< tensors that are in no layer
  std::vector<std::string> notes = {};      ///< what was left out or guessed, a sentence each
};

/// A Hugging Face folder or GGUF file with a decoder in the style of Llama; a file that save_network wrote; or a
/// safetensors or GGUF file of tensors, from whose names and shapes layers are guessed. Layers whose
/// tensors are of one dtype keep it; others are float32. Throws IoError, FormatError; UnsupportedError for other forms
/// and for models that these layers cannot compute, UsageError for options that do not fit the tensors.
ImportedNetwork import_network(const std::string& path, const ImportOptions& options = {});

/// A checkpoint as text, in memory. `file` is the name that errors give.
Network deserialize_network(std::string_view json, const LoadOptions& options = {},
                            std::string_view file = "checkpoint");
std::string serialize_network(const Network& network);

/// A layer by itself as text: one object of the list `layers` of a checkpoint.
Layer deserialize_layer(std::string_view json, const LoadOptions& options = {}, std::string_view file = "layer");
std::string serialize_layer(const Layer& layer);

/// A network from its architecture, with fresh weights; weights in the text are ignored. Throws FormatError for a text
/// that is wrong, UsageError, naming the layer, for settings that make no valid layer.
Network build_network_from_json(std::string_view json, std::uint64_t seed, std::string_view file = "architecture");

/// A layer under the name that files give it: "layers.0.sequential_layers.1".
struct NamedLayer {
  std::string path;
  const Layer* layer = nullptr;
};
/// Every layer of the grid and every layer inside it, those of meta networks too: a layer, then what is inside it,
/// depth first. Valid until layers are added or removed.
std::vector<NamedLayer> named_layers(const Network& network);

/// The gradients of every layer with weights, as `Network::backward` summed them: path and values in the layout of the
/// master. Layers that had no part in it have zeros; meta networks are not trained and left out.
std::vector<std::pair<std::string, std::vector<float>>> named_gradients(Network& network);

// ---- looking

/// A tensor of a model file, without its values.
struct TensorSummary {
  std::string name;  ///< of the weights of a layer: its path, `layers.0.sequential_layers.1`
  std::string type;  ///< as the file's form spells it; a dtype in checkpoints
  Shape shape;
  std::uint64_t bytes = 0;  ///< scales included where they belong to the tensor
};

/// What a language model needs to run.
struct LanguageSummary {
  std::string architecture;  ///< as imago names it; empty if it does not run it
  std::string problem;       ///< why it does not run it; empty if it does
  bool generates = true;     ///< else it makes embeddings only
  std::size_t blocks = 0, width = 0, vocabulary = 0, context = 0;
  std::size_t experts = 0, experts_used = 0;  ///< 0: none
  std::uint64_t active_parameters = 0;        ///< weights that one token is multiplied with
  std::uint64_t step_bytes = 0;               ///< size of those matrices as they are stored: what a token has to read
  std::uint64_t cache_bytes = 0;              ///< keys and values in float16, for each token of a text
};

/// What a model file says about itself.
struct ModelSummary {
  FileForm form = FileForm::checkpoint;
  std::string architecture;      ///< what a language model's file names; empty for other files
  std::uint64_t parameters = 0;  ///< of an architecture: the weights that its layers would have
  std::uint64_t bytes = 0;       ///< of all tensors, without the rest of the file
  std::uint64_t file_bytes = 0;
  std::vector<std::pair<std::string, std::string>> metadata;  ///< in the order of the file; values are JSON texts
  std::vector<TensorSummary> tensors;                         ///< in the order of the file
  std::vector<std::string> notes;                             ///< harmless oddities, a sentence each
  std::optional<LanguageSummary> language;                    ///< for files that name an architecture

  /// 8 · bytes / parameters; 0 without weights in the file.
  double bits_per_weight() const noexcept;
};

/// Looks into a file of any form that imago knows. Sizes are checked against each other and against the file as a
/// loader would; values are not looked at, and nothing is decoded. Throws IoError, FormatError.
ModelSummary inspect_model(const std::string& path);

// ---- training

struct TrainState;  // imago/train.h

/// All that an exact resume needs, in one safetensors file: the state, and of each layer its type, its float32 master
/// and the scales that are fixed or learned; for networks with Metacognition, the settings of all layers too, since
/// rules change them. The file appears whole or not at all. Throws IoError.
void save_train_state(const std::string& path, const Network& network, const TrainState& state);
/// Gives the layers of `network` back what they had, and returns the state. Throws IoError, FormatError if the file is
/// none of these or belongs to another network, which is then as before.
TrainState load_train_state(const std::string& path, Network& network);

}  // namespace imago
